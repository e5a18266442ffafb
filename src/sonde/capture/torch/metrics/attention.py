"""Attention of a watched model, seen where it happens, without a change to the model.

While a metric asks for it, functions of torch that attention is made of tell us of their calls:
`scaled_dot_product_attention` and `flex_attention` by themselves, and a product, a softmax over its
last dimension and another product with what came out of it. Each does exactly what it did. When
the last listener has gone, torch is as it was. In compiled code nothing is heard.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from sonde.metrics.torch.attention import AttentionCall


class SeenAttention(NamedTuple):
    """A call of attention: what is known of it. No `call` if the model made its logits itself."""

    call: AttentionCall | None
    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    output: Tensor | None
    device: torch.device


class AttentionListener(Protocol):
    """Who wants to hear."""

    @property
    def is_listening(self) -> bool:
        """Whether this thread is inside a watched module now, in a recorded step."""
        ...

    def called(self, heard: SeenAttention) -> None:
        """Attention was computed."""

    def product(self, a: Tensor, b: Tensor, out: Tensor, *, is_plain: bool) -> None:
        """Two tensors were multiplied: as matrices if `is_plain`, else in some other way."""

    def normalised(self, logits: Tensor, weights: Tensor) -> None:
        """A softmax over the last dimension was taken."""

    def failed(self, error: Exception) -> None:
        """Something in here did not work. Training goes on."""


_Function = Callable[..., object]
"""A function of torch. `Any`: what it takes and returns, as torch documents it."""

_LISTENERS: tuple[AttentionListener, ...] = ()
_LOCK: Final = threading.Lock()
_BUSY: Final = threading.local()
_RESTORE: Final[list[tuple[object, str, object]]] = []


def listen(listener: AttentionListener, model: nn.Module) -> None:
    """Tell the listener from now on, also of calls by names that the model's code has imported."""
    global _LISTENERS
    with _LOCK:
        if not _LISTENERS:
            _install()
        _LISTENERS = (*_LISTENERS, listener)
        _install_in(model)


def forget(listener: AttentionListener) -> None:
    """Stop telling the listener; without listeners torch is restored."""
    global _LISTENERS
    with _LOCK:
        _LISTENERS = tuple(x for x in _LISTENERS if x is not listener)
        if not _LISTENERS:
            while _RESTORE:
                owner, name, original = _RESTORE.pop()
                if original is _ABSENT:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)


def heard_by() -> list[AttentionListener]:
    """The listeners that want to hear of a call made now."""
    if torch.compiler.is_compiling() or getattr(_BUSY, "now", False):
        return []
    return [x for x in _LISTENERS if x.is_listening]


_ABSENT: Final = object()


def _install() -> None:
    for owner, name, wrap in (
        (functional, "scaled_dot_product_attention", _sdpa),
        (functional, "softmax", _softmax),
        (torch, "softmax", _softmax),
        (Tensor, "softmax", _softmax),
        (torch, "matmul", _product),
        (torch, "bmm", _product),
        (torch, "baddbmm", _product_and_sum),
        (Tensor, "matmul", _product),
        (Tensor, "bmm", _product),
        (Tensor, "__matmul__", _product),
        (torch, "einsum", _einsum),
    ):
        _replace(owner, name, wrap(getattr(owner, name)))
    flex = sys.modules.get("torch.nn.attention.flex_attention")
    if flex is not None:
        _replace(flex, "flex_attention", _flex(flex.flex_attention))


def _replace(owner: object, name: str, new: object) -> None:
    _RESTORE.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, new)


def _install_in(model: nn.Module) -> None:
    """Names that modules of code have imported from torch, where classes of the model are made."""
    known = {id(original): getattr(owner, name) for owner, name, original in _RESTORE}
    for source in {type(m).__module__ for m in model.modules()}:
        code = sys.modules.get(source)
        if code is None or source.split(".")[0] == "torch":
            continue
        for name, value in list(vars(code).items()):
            if id(value) in known and callable(value) and value is not known[id(value)]:
                _replace(code, name, known[id(value)])


def _telling(
    original: _Function,
    tell: Callable[[AttentionListener, tuple[Any, ...], dict[str, Any], Any], None],
) -> _Function:
    """The function as it was, and a word to those who listen."""

    @functools.wraps(original)
    def told(*args: object, **kwargs: object) -> object:
        listeners = heard_by()
        if not listeners:
            return original(*args, **kwargs)
        _BUSY.now = True  # what a function calls itself is not told twice
        try:
            out = original(*args, **kwargs)
            for listener in listeners:
                try:
                    tell(listener, args, kwargs, out)
                except Exception as error:
                    listener.failed(error)
            return out
        finally:
            _BUSY.now = False

    return told


def _sdpa(original: _Function) -> _Function:
    order = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")

    def tell(
        listener: AttentionListener, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        q, k, v = given["query"], given["key"], given["value"]
        call = AttentionCall(
            q, k, given.get("attn_mask"), bool(given.get("is_causal")), given.get("scale")
        )
        listener.called(SeenAttention(call, q, k, v, out, q.device))

    return _telling(original, tell)


def _flex(original: _Function) -> _Function:
    order = ("query", "key", "value", "score_mod", "block_mask", "scale")

    def tell(
        listener: AttentionListener, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        q, k, v = given["query"], given["key"], given["value"]
        scores = _scores(given.get("score_mod"), getattr(given.get("block_mask"), "mask_mod", None))
        call = AttentionCall(q, k, scale=given.get("scale"), scores=scores)
        first = out[0] if isinstance(out, tuple) else out
        listener.called(SeenAttention(call, q, k, v, first, q.device))

    return _telling(original, tell)


def _scores(
    change: Callable[..., Tensor] | None, mask: Callable[..., Tensor] | None
) -> Callable[..., Tensor] | None:
    """What FlexAttention does to logits, for all of them at once."""
    if change is None and mask is None:
        return None

    def scores(logits: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if change is not None:
            logits = change(logits, b, h, q, k)
        if mask is not None:
            logits = logits.masked_fill(~mask(b, h, q, k), -torch.inf)
        return logits

    return scores


def _softmax(original: _Function) -> _Function:
    def tell(
        listener: AttentionListener, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        x = args[0] if args else kwargs["input"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if isinstance(x, Tensor) and x.dim() >= 3 and dim in (-1, x.dim() - 1):
            listener.normalised(x, out)

    return _telling(original, tell)


def _product(original: _Function) -> _Function:
    def tell(
        listener: AttentionListener, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        several = [*args, *kwargs.values()]
        if len(several) >= 2 and isinstance(several[0], Tensor) and several[0].dim() >= 3:
            listener.product(several[0], several[1], out, is_plain=True)

    return _telling(original, tell)


def _product_and_sum(original: _Function) -> _Function:
    def tell(
        listener: AttentionListener, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        several = [*args, *kwargs.values()]
        listener.product(several[1], several[2], out, is_plain=True)

    return _telling(original, tell)


def _einsum(original: _Function) -> _Function:
    def tell(
        listener: AttentionListener, args: tuple[Any, ...], _kwargs: dict[str, Any], out: Any
    ) -> None:
        if len(args) == 3 and isinstance(args[1], Tensor) and out.dim() >= 3:
            listener.product(args[1], args[2], out, is_plain=False)

    return _telling(original, tell)
