"""An archive: answers to questions that were asked ahead, for a page without a server.

Reports hold one, and widgets in notebooks begin with one. Answers lie in blocks of compressed
bytes, so that the page unpacks what it shows and no more. The index says which answer belongs to
which question: by all parameters but those that only say how fine an answer should be (`_FREE`).
Of views at a step, several steps may be there; the page takes the nearest at or before the one it
wants.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Final

from sonde.views import envelope
from sonde.views.routes import ROUTES
from sonde.views.specs import RunState

FORMAT: Final = 1
"""Grows when an older page cannot read an archive any more."""

_LEVEL: Final = 6
"""Of gzip: 9 saves 1 % and takes four times as long on the answers of a report."""

NEAR: Final = {
    "section": "step",
    "tint": "step",
    "variable": "step",
    "table": "step",
    "paired_section": "step",
}
"""The parameter of which the nearest one that is there will do."""

_TIME: Final = frozenset({"first", "last", "columns", "after"})
_FREE: Final[Mapping[str, frozenset[str]]] = {
    "state": frozenset({"run", "since"}),
    "spark": frozenset({"columns"}),
    "search": frozenset({"q", "limit"}),  # all modules are there: the page searches them itself
    "lines": _TIME,
    "heat": _TIME | {"rows"},
    "kymograph": _TIME,
    "section": frozenset({"format"}),
    "variable": frozenset({"rows", "columns", "context"}),
    "tint": _TIME | {"sparks"},
    "movers": frozenset({"limit"}),
    "paired_heat": _TIME - {"after"},
}
"""Parameters that do not tell one answer from another."""

Text = str | list[str] | None

Question = tuple[str, object]
"""The name of a view, and a question to it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its answer. `step` is the one that the answer is about, where it has one;
    `state` that of its run, where it is another one than that of the archive."""

    view: str
    question: object
    spec: object
    step: int | None = None
    state: RunState | None = None


@dataclass(slots=True)
class AnswerBlock:
    """Answers that are unpacked together."""

    body: bytearray = field(default_factory=bytearray)
    places: list[tuple[str, list[Text], int | None, int, int]] = field(default_factory=list)

    def put(self, asked: Asked, run: RunState | None) -> None:
        """Add an answer."""
        _, data = envelope.pack(asked.view, asked.spec, asked.state or run)
        self.put_packed(asked.view, asked.question, data, asked.step)

    def put_packed(self, view: str, question: object, data: bytes, step: int | None = None) -> None:
        """Add an answer that is bytes already."""
        self.places.append((view, key_of(view, question), step, len(self.body), len(data)))
        self.body += data


class Archive:
    """Blocks, as text that can stand anywhere, up to a size."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes
        self.blocks: list[str] = []
        self._places: list[list[object]] = []

    def add(self, block: AnswerBlock, *, is_needed: bool = False) -> bool:
        """Whether the block was added: one that does not fit is left out, unless it is needed."""
        if not block.places:
            return True
        text = encoded(bytes(block.body))
        size = len(text) + 60 * len(block.places)  # its lines of the index, compressed
        if size > self._left and not is_needed:
            return False
        self._left -= size
        at = len(self.blocks)
        self.blocks.append(text)
        self._places += [[view, key, step, at, *where] for view, key, step, *where in block.places]
        return True

    def named(self, about: Mapping[str, object]) -> dict[str, str]:
        """The blocks by name, with the index."""
        return {"index": self.index(about), **{str(i): b for i, b in enumerate(self.blocks)}}

    @property
    def left_bytes(self) -> int:
        """What is left of the size; negative where needed blocks took more."""
        return self._left

    def index(self, about: Mapping[str, object]) -> str:
        """What the page reads first."""
        used = dict.fromkeys(str(place[0]) for place in self._places)
        views = [[view, _parameters(view), NEAR.get(view)] for view in used]
        found = {"format": FORMAT, "about": about, "views": views, "answers": self._places}
        text = json.dumps(found, ensure_ascii=True, separators=(",", ":"))
        return encoded(text.encode("ascii"))


def step_of(view: str, spec: object) -> int | None:
    """The step that an answer is about, for views that have one."""
    if view not in NEAR:
        return None
    found: int | None = getattr(getattr(spec, "a", spec), "step", None)
    return found


def encoded(data: bytes) -> str:
    """Compressed bytes as letters, digits and `+/=`: no host of markup can misread them."""
    return base64.b64encode(gzip.compress(data, _LEVEL, mtime=0)).decode("ascii")


def key_of(view: str, question: object) -> list[Text]:
    """What tells a question from others to the same view."""
    return [_text(getattr(question, name)) for name, _ in _parameters(view)]


def _parameters(view: str) -> list[tuple[str, Text]]:
    """The parameters that tell questions apart, each with its default."""
    left = _FREE.get(view, frozenset()) | {NEAR.get(view)}
    return [
        (f.name, None if f.default is MISSING else _text(f.default))
        for f in fields(ROUTES[view].question)
        if f.name not in left
    ]


def _text(value: object) -> Text:
    """A parameter as the page writes it into a request."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, Sequence):
        return [str(one) for one in value]
    return str(value)
