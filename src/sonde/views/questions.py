"""Questions: what views can be asked, and what a question may hold.

A question is a frozen dataclass whose fields are the parameters of a request. `parse` makes one
from text and refuses what is not in it: unknown names, values out of bounds, text that is too long.
What a text means (is there such a site?) is for the view to say.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sonde._errors import SondeError
from sonde.views.specs import Aggregate, Measure, Norm, RangeMode, Scale, ScaleChoice

MAX_TEXT: Final = 300
MAX_SEARCH: Final = 200
MAX_ITEMS: Final = 64
MAX_COLUMNS: Final = 8192
MAX_CELLS: Final = 512
MAX_STEP: Final = 1 << 53


T = TypeVar("T")


class QuestionError(SondeError):
    """A question that cannot be asked. The message says what was wrong and what was expected."""


def _number(default: T, low: float, high: float) -> T:
    return field(default=default, metadata={"low": low, "high": high})


def _step() -> int | None:
    return _number(None, -MAX_STEP, MAX_STEP)


def _text(default: T, limit: int = MAX_TEXT) -> T:
    return field(default=default, metadata={"text": limit})


@dataclass(frozen=True, slots=True, kw_only=True)
class NoQuestion:
    """A question without parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuestion:
    """How far have these runs come? `since` is the `token` of an earlier answer."""

    run: tuple[str, ...] = ()
    since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuestion:
    """A question about a run as a whole."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkQuestion:
    """A small line of a scalar; of the loss if no name is given."""

    run: str
    name: str | None = None
    columns: int = _number(64, 8, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockQuestion:
    """Another time axis: a scalar by name (`epoch`, `tokens`), or `time` for seconds."""

    run: str
    name: str = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeQuestion:
    """The modules, from the top or below one of them. `fold` collapses repeats."""

    run: str
    module: str | None = None
    fold: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelQuestion:
    """The inside a call (`node`, by default the model). `unfold` names groups to show singly;
    `unfold=*` all."""

    run: str
    node: str | None = None
    fold: bool = True
    unfold: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelQuestion:
    """What a module (`module`), or a call, input, output or attached tensor (`node`), can show."""

    run: str
    node: str | None = None
    module: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion:
    """Modules by part of their path, a glob (`*.q_proj`), `re:...` or `=exact path`."""

    run: str
    q: str = _text("", MAX_SEARCH)
    limit: int = _number(50, 1, 500)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesQuestion:
    """Scalars by name, or with `module` (an id; `*` for all) metrics by name."""

    run: str
    name: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    phase: str | None = None
    rank: int | None = _number(None, 0, 1 << 30)
    first: int | None = _step()
    last: int | None = _step()
    columns: int = _number(1024, 8, MAX_COLUMNS)
    after: str | None = _text(None, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatQuestion:
    """A statistic of all sites of a kind, or with `metric` a metric of all modules, over time.

    `under` keeps a module and what lies below it. `fold` shows repeated siblings as one row.
    """

    run: str
    kind: str | None = None
    stat: str = "rms"
    metric: str | None = None
    under: str | None = None
    fold: bool = False
    phase: str = "train"
    rank: int | None = _number(None, 0, 1 << 30)
    first: int | None = _step()
    last: int | None = _step()
    columns: int = _number(1024, 8, MAX_COLUMNS)
    rows: int = _number(2048, 1, 8192)
    aggregate: Aggregate = "max_abs"
    norm: Norm = "none"
    after: str | None = _text(None, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class KymographQuestion:
    """How the values of a site are spread, over time.

    Scale `auto` is `linear`, or `log` where the window spans more than four decades. `range`
    `fixed` takes `low` and `high`; the others find them. `cells` is how many there are on the y
    axis; with scale `exponent` there is one per power of two.
    """

    run: str
    site: str
    phase: str = "train"
    rank: int | None = _number(None, 0, 1 << 30)
    first: int | None = _step()
    last: int | None = _step()
    columns: int = _number(512, 8, MAX_COLUMNS)
    cells: int = _number(64, 4, MAX_CELLS)
    scale: ScaleChoice = "auto"
    range: RangeMode = "robust"
    low: float | None = None
    high: float | None = None
    after: str | None = _text(None, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionQuestion:
    """One site at one step (the last one by default), on the axis of a kymograph.

    With `low` and `high` the axis is theirs, else it covers all values.
    """

    run: str
    site: str
    step: int | None = _step()
    phase: str = "train"
    rank: int | None = _number(None, 0, 1 << 30)
    cells: int = _number(64, 4, MAX_CELLS)
    scale: Scale = "asinh"
    low: float | None = None
    high: float | None = None
    format: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableQuestion:
    """What a traced variable (a `site` of kind `local`) held at a step, the last one by default.

    Of several values in that step `nth` is one, from 0, else it is the last one. Of a tensor with
    more than two dimensions `item` is one matrix, from 0. Where there are not so many, it is the
    last. `rows` and `columns` are how many cells there may be, `context` how many lines of source
    before and after the one that gave the value.
    """

    run: str
    site: str
    step: int | None = _step()
    phase: str = "train"
    rank: int | None = _number(None, 0, 1 << 30)
    nth: int | None = _number(None, 0, 1 << 40)
    item: int = _number(0, 0, 1 << 40)
    rows: int = _number(256, 1, 256)
    columns: int = _number(256, 1, 256)
    context: int = _number(2, 0, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class TintQuestion:
    """A statistic of all boxes of a level at a step (the last one by default).

    `node`, `fold` and `unfold` as in `LevelQuestion`: the answer speaks of the same boxes. The
    lines depend on the window alone: with `sparks=0` they are left out.
    """

    run: str
    node: str | None = None
    fold: bool = True
    unfold: tuple[str, ...] = ()
    kind: str | None = None
    stat: str = "rms"
    metric: str | None = None
    step: int | None = _step()
    phase: str = "train"
    first: int | None = _step()
    last: int | None = _step()
    sparks: bool = True
    columns: int = _number(48, 8, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoversQuestion:
    """Which sites moved most between the ends of a window, and which are not finite."""

    run: str
    kind: str | None = None
    stat: str = "rms"
    phase: str = "train"
    first: int | None = _step()
    last: int | None = _step()
    limit: int = _number(20, 1, 500)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuestion:
    """All tensors of a kind at a step (the last one by default), with what `format` would lose.

    Changes and the first step that is not finite are looked for between `first` and `last`.
    """

    run: str
    kind: str | None = None
    under: str | None = None
    step: int | None = _step()
    format: str = "float8_e4m3fn"
    phase: str = "train"
    first: int | None = _step()
    last: int | None = _step()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuestion:
    """How does the run `other` differ from `run`?

    `name` pairs paths of modules (`encoder=backbone`) that are not matched by themselves. `twin` is
    a run that is the first one but for its seed.
    """

    run: str
    other: str
    name: tuple[str, ...] = ()
    twin: str | None = None
    phase: str = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedHeatQuestion:
    """A statistic of the matching sites of two runs, and how it differs.

    With `measure` `ratio` that is log2 of the first over the second (for shares: the difference),
    with `distance` how far the values themselves are apart, in octaves.
    """

    run: str
    other: str
    name: tuple[str, ...] = ()
    kind: str | None = None
    stat: str = "rms"
    under: str | None = None
    phase: str = "train"
    first: int | None = _step()
    last: int | None = _step()
    columns: int = _number(1024, 8, MAX_COLUMNS)
    aggregate: Aggregate = "max_abs"
    measure: Measure = "ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedSectionQuestion:
    """A site of the first run and its match in the other at one step, on one axis."""

    run: str
    other: str
    site: str
    name: tuple[str, ...] = ()
    step: int | None = _step()
    phase: str = "train"
    cells: int = _number(96, 4, MAX_CELLS)
    scale: Scale = "linear"


Q = TypeVar("Q")


def parse(question: type[Q], given: Iterable[tuple[str, str]]) -> Q:
    """The question in these pairs of names and texts. A field of several values may come again."""
    texts: dict[str, list[str]] = {}
    for name, text in given:
        texts.setdefault(name, []).append(text)
    known = {f.name: f for f in fields(question)}  # type: ignore[arg-type]  # all are dataclasses
    for name in texts:
        if name not in known:
            names = ", ".join(known) or "none"
            raise QuestionError(f"There is no parameter `{name[:50]}`. Known are: {names}.")
    hints = get_type_hints(question)
    values = {n: _value(known[n], hints[n], found) for n, found in texts.items()}
    missing = [n for n, f in known.items() if n not in values and _is_required(f)]
    if missing:
        raise QuestionError(f"The parameter `{missing[0]}` is missing.")
    return question(**values)


def _is_required(f: Field[object]) -> bool:
    return f.default is MISSING and f.default_factory is MISSING


def _value(f: Field[object], hint: object, found: Sequence[str]) -> object:
    if get_origin(hint) is tuple:
        if len(found) > MAX_ITEMS:
            raise QuestionError(f"`{f.name}` can be given {MAX_ITEMS} times, got {len(found)}.")
        return tuple(_one(f, str, text) for text in found)
    if len(found) > 1:
        raise QuestionError(f"`{f.name}` can be given once, got {len(found)}.")
    return _one(f, _without_none(hint), found[0])


def _without_none(hint: object) -> object:
    if get_origin(hint) in {Union, types.UnionType}:
        return next(a for a in get_args(hint) if a is not type(None))
    return hint


def _one(f: Field[object], hint: object, text: str) -> object:
    meta: Mapping[str, int] = f.metadata
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise QuestionError(
                f"`{f.name}` must be one of {', '.join(get_args(hint))}, got `{text[:50]}`."
            )
        return text
    if hint is str:
        limit = meta.get("text", MAX_TEXT)
        if len(text) > limit:
            raise QuestionError(f"`{f.name}` may have {limit} characters, got {len(text)}.")
        return text
    if hint is bool:
        if text not in {"0", "1", "true", "false"}:
            raise QuestionError(f"`{f.name}` must be 0 or 1, got `{text[:50]}`.")
        return text in {"1", "true"}
    return _numeral(f.name, hint, text, meta)


def _numeral(name: str, hint: object, text: str, meta: Mapping[str, float]) -> float:
    what = "a whole number" if hint is int else "a number"
    try:
        if len(text) > 40:
            raise ValueError(text)
        value: float = int(text) if hint is int else float(text)
    except ValueError:
        raise QuestionError(f"`{name}` must be {what}, got `{text[:50]}`.") from None
    low, high = meta.get("low", -1e308), meta.get("high", 1e308)
    if not low <= value <= high:
        raise QuestionError(f"`{name}` must lie between {low} and {high}, got {value}.")
    return value
