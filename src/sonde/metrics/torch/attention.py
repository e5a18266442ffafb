"""What attention does, per head: entropy, largest logit, mass on the first key, effective context.

From queries and keys, or from logits that a model has made itself. Sequences of up to `MAX_ROWS`
queries are taken whole; of longer ones, evenly spaced queries are. At no time are there more than
`MAX_ELEMENTS` logits of ours.

Legend: B batch, H heads, L queries, S keys, D width of a head, R sampled queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

MAX_ROWS: Final = 256
"""Queries per sequence that are looked at. The error of a mean is then at most three standard
errors over so many queries and all sequences: 0.02 nats of entropy at 2048 queries of one sequence
whose logits have variance 1 (`tests/metrics/test_attention_terms.py`)."""

MAX_ELEMENTS: Final = 1 << 23
"""Logits that are held at once: 32 MiB of float32, so that a GPU's cache can hold them."""

_PIECES: Final = 4
"""Into how many queries are divided at least that see none of the keys after them: the first of
them need but a part of the keys."""

TERMS: Final = ("entropy", "first_token", "effective_context", "max_logit")
"""Nats per query; weight on the first key; exp(entropy), the number of keys that a query attends to
as if evenly; the largest logit after scale and mask. Means over queries, but for the last."""

Scores = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""What changes logits: logits, and broadcastable indices of batch, head, query and key."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which queries are looked at: every `step`-th of `total`, from `first` on."""

    first: int
    step: int
    total: int

    @property
    def rows(self) -> range:
        return range(self.first, self.total, self.step)

    @property
    def is_whole(self) -> bool:
        return self.step == 1


def sampling(queries: int, max_rows: int = MAX_ROWS) -> Sampling:
    """Evenly spaced queries, in the middle of their stretches."""
    step = max(1, math.ceil(queries / max_rows))
    return Sampling((step - 1) // 2 if queries > (step - 1) // 2 else 0, step, queries)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A call of attention. Queries are (..., H, L, D), or (..., L, D) with one head; keys may have
    fewer heads. The mask is boolean (true takes part) or added, of any shape that broadcasts."""

    query: Tensor
    key: Tensor
    mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    scores: Scores | None = None


def heads_of(x: Tensor) -> Tensor:
    """(B, H, L, D) of a tensor with any leading dimensions."""
    if x.dim() == 2:
        return x[None, None]
    if x.dim() == 3:
        return x[:, None]
    return x.flatten(0, -4) if x.dim() > 4 else x


def of_call(
    call: AttentionCall, max_rows: int = MAX_ROWS, max_elements: int = MAX_ELEMENTS
) -> Tensor:
    """The terms of a call as raw numbers, see `finish`: (5, H)."""
    q, k = heads_of(call.query), heads_of(call.key)
    k = k.to(_wide(k))
    b, h, length, width = q.shape
    keys = k.shape[-2]
    chosen = sampling(length, max_rows)
    scale = 1 / math.sqrt(width) if call.scale is None else call.scale
    mask = None if call.mask is None else _spread(call.mask, call.query.shape[:-2], keys)
    most = max(1, max_elements // max(1, b * h * keys))
    found = []
    for part in _pieces(chosen, most, _PIECES if call.is_causal else 1):
        seen = min(keys, part.stop) if call.is_causal else keys
        logits = _logits(q[:, :, part], k[:, :, :seen], scale)
        rows = torch.arange(part.start, part.stop, part.step, device=q.device)
        if call.scores is not None:
            logits = call.scores(logits, *_indices(b, h, rows, seen))
        if mask is not None:
            own = mask if mask.shape[-2] == 1 else mask[:, :, part]
            logits = _masked(logits, own[..., :seen])
        if call.is_causal and part.start + 1 < seen:
            late = torch.arange(part.start + 1, seen, device=q.device) > rows[:, None]
            logits[..., part.start + 1 :].masked_fill_(late, -torch.inf)
        found.append(_of_queries(logits))
    return _raw(found) if found else _nothing(h, q.device)


def of_logits(logits: Tensor, max_rows: int = MAX_ROWS, max_elements: int = MAX_ELEMENTS) -> Tensor:
    """The terms of logits that a model made, (..., H, L, S) with masks in them."""
    x = heads_of(logits)
    chosen = sampling(x.shape[-2], max_rows)
    most = max(1, max_elements // max(1, x[:, :, :1].numel()))
    found = [_of_queries(x[:, :, part].to(_wide(x))) for part in _pieces(chosen, most)]
    return _raw(found) if found else _nothing(x.shape[1], x.device)


def join(a: Tensor, b: Tensor) -> Tensor:
    """Raw numbers of two calls, as those of both."""
    return torch.cat([a[:4] + b[:4], torch.maximum(a[4:], b[4:])])


def finish(raw: Tensor) -> dict[str, Tensor]:
    """Each term per head, from raw numbers: sums over queries, how many these were, the maximum."""
    sums, count, top = raw[:3], raw[3], raw[4]
    means = sums / count
    return {
        "entropy": means[0],
        "first_token": means[1],
        "effective_context": means[2],
        "max_logit": top,
    }


def _of_queries(logits: Tensor) -> Tensor:
    """Per query its largest logit, entropy and first weight, (3, B, H, R)."""
    weights = logits.softmax(-1)  # NaN where all is masked
    return torch.stack([logits.amax(-1), torch.special.entr(weights).sum(-1), weights[..., 0]])


def _raw(parts: Sequence[Tensor]) -> Tensor:
    """Sums over batch and queries of entropy, first weight and effective context; how many queries
    attend to anything at all; the largest logit."""
    largest, entropy, first = torch.cat(list(parts), -1) if len(parts) > 1 else parts[0]
    attends = largest != -torch.inf
    found = [torch.where(attends, x, 0) for x in (entropy, first, entropy.exp())]
    wide = torch.float32 if largest.device.type == "mps" else torch.float64
    several = [x.sum((0, 2), dtype=wide) for x in (*found, attends)]
    return torch.stack([*several, largest.amax((0, 2)).to(wide)])


def _nothing(heads: int, device: torch.device) -> Tensor:
    raw = torch.zeros((5, heads), device=device)
    raw[4] = -torch.inf
    return raw


def _logits(q_BHRD: Tensor, k: Tensor, scale: float) -> Tensor:
    """Logits in the precision of the keys, which has been widened."""
    q = q_BHRD.to(k.dtype) * scale
    heads, fewer = q.shape[1], k.shape[1]
    if heads == fewer:
        plain: Tensor = q @ k.mT
        return plain
    grouped: Tensor = q.unflatten(1, (fewer, heads // fewer)) @ k[:, :, None].mT
    return grouped.flatten(1, 2)


def _masked(logits: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return logits.masked_fill_(~mask, -torch.inf)
    return logits.add_(mask)


def _spread(mask: Tensor, lead: torch.Size, keys: int) -> Tensor:
    """The mask as (B, H, L or 1, S), without copying where that can be had."""
    if mask.dim() < 2:
        mask = mask[None] if mask.dim() else mask[None, None]
    return heads_of(mask.expand(*lead, mask.shape[-2], keys))


def _indices(b: int, h: int, rows: Tensor, keys: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    device = rows.device
    return (
        torch.arange(b, device=device)[:, None, None, None],
        torch.arange(h, device=device)[None, :, None, None],
        rows[None, None, :, None],
        torch.arange(keys, device=device)[None, None, None, :],
    )


def _pieces(chosen: Sampling, most: int, pieces: int = 1) -> Iterator[slice]:
    """The sampled queries, about as many at a time: in so many pieces, or in more if one has more
    than the most."""
    rows = chosen.rows
    n = max(1, math.ceil(len(rows) / max(pieces, math.ceil(len(rows) / most))))
    for i in range(0, len(rows), n):
        piece = rows[i : i + n]
        yield slice(piece.start, piece[-1] + 1, piece.step)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
