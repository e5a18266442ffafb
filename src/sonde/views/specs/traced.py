"""Specs of traced values."""

from __future__ import annotations

from dataclasses import dataclass

from sonde.views.specs.parts import F64, U8, Bounds, SiteRef


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a method. `is_here` for the one that gave a variable its value."""

    number: int
    text: str
    is_here: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor's last two dimensions: `height` × `width` elements. A vector is one row.

    The dimensions before them make `items` matrices; this is `item`, which is `index` in each of
    them. The arrays are `rows` × `columns`, row by row. A cell stands for `cell_rows` ×
    `cell_columns` neighbouring elements, fewer at the lower and the right end. In `values` it holds
    the finite one that is farthest from zero; in `low` and `high` the smallest and the largest one,
    which may be infinite; NaN where there is none. Its flag is 2 where any element is not finite;
    `not_finite` is how many are in the whole matrix. `limits` are robust over the cells; their
    `min` and `max` are those of all finite elements.
    """

    items: int
    item: int
    index: tuple[int, ...]
    height: int
    width: int
    rows: int
    columns: int
    cell_rows: int
    cell_columns: int
    values: F64
    low: F64
    high: F64
    flags: U8
    not_finite: int
    limits: Bounds
    is_signed: bool


@dataclass(frozen=True, slots=True)
class Variable:
    """What a traced variable held at a step: the last value that was kept at or before it.

    `step` is when it was kept, null if there was none yet; `previous` and `next` are the steps of
    its neighbours. In one step a variable may have had `of` values one after the other: this is
    number `nth`, from 0. Of a tensor there is a `shape`, and a `matrix` unless a note says why not;
    anything else is told by `text`. `lines` are those of `method` around the one that gave the
    value.
    """

    site: SiteRef
    name: str
    asked: int | None
    step: int | None
    previous: int | None
    next: int | None
    rank: int | None
    nth: int
    of: int
    dtype: str
    shape: tuple[int, ...] | None
    text: str
    matrix: Matrix | None
    method: str
    lines: tuple[SourceLine, ...]
    notes: tuple[str, ...]
