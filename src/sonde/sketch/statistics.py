"""Named statistics of many sketches at once: columns in, one number per sketch out.

A `Statistic` is the one definition: how numpy computes it, how SQL does, what it is called and how
its numbers are shown. `run.stats`, `run.sql`, sinks and the page take their lists from here.

Every name works on `Sketches` of any length without a Python loop over rows. NaN means that there
is nothing to say (no finite value; one value for a variance). Values that are NaN or infinite are
counted (`nans`, `infs`) and otherwise left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from sonde.record import COUNTS, EXTREMA, N_BINS, SUMS, Sketches
from sonde.sketch import bins as _bins
from sonde.sketch.formats import FORMATS
from sonde.sketch.staircase import quantiles

Compute = Callable[[Sketches], NDArray[np.float64]]
NumberFormat = Literal["number", "share", "count"]
"""How a number is shown: as it is, in per cent, as a whole number."""

RESERVED: Final = frozenset(
    {*("step", "phase", "name", "module", "kind", "call", "slot", "dtype", "stage", "rank")}
    | {*("attempt", "replaced", "bin_ids", "bin_counts", "median")}
)
"""Names of columns that stand beside statistics."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """A number that is read off a sketch. Called with columns, it gives one number for each row.

    `sql` is the same over the columns `COUNTS`, `SUMS` and `EXTREMA` of a row, null where numpy has
    NaN; without it the statistic is computed by `compute` from whole sketches, which is slower over
    many steps. `is_signed` says that its sign means something. `is_main` statistics are shown with
    every tensor, those that are not `is_listed` only where they are asked for by name.
    """

    name: str
    compute: Compute
    sql: str | None = None
    label: str = ""
    format: NumberFormat = "number"
    is_signed: bool = False
    is_main: bool = True
    is_listed: bool = True

    def __call__(self, s: Sketches) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.asarray(self.compute(s), dtype=np.float64)
        if found.shape != (len(s),):
            raise ValueError(
                f"The statistic `{self.name}` gave an array of shape {found.shape} for {len(s)} "
                f"sketches. It must give one number for each: ({len(s)},)."
            )
        return found

    @property
    def title(self) -> str:
        """What people read."""
        return self.label or self.name.replace("_", " ")

    @property
    def needs_bins(self) -> bool:
        """Whether it is computed from whole sketches: SQL cannot."""
        return self.sql is None


def statistic(name: str) -> Statistic:
    """The statistic of that name: one of `STATISTICS`, or a quantile such as `p50` or `p99.9`."""
    found = STATISTICS.get(name)
    if found is not None:
        return found
    quantile = _quantile_of(name)
    if quantile is None:
        known = ", ".join(STATISTICS)
        raise ValueError(
            f"Unknown statistic `{name}`. Known are: {known}; and quantiles such as `p99.9`."
        )
    compute: Compute = lambda s: quantiles(s, [quantile])[:, 0]  # noqa: E731  # as the others
    is_main = name in ("p1", "p50", "p99")
    return Statistic(name, compute, is_signed=name == "median", is_main=is_main)


def needs_bins(name: str) -> bool:
    """Whether the statistic reads the bins (true) or the counts, sums and extrema alone."""
    return statistic(name).needs_bins


def register(made: Statistic) -> Statistic:
    """Add a statistic, or one of the same name in place of one that was added before.

    In its `sql`, `{rms}` stands for the SQL of another statistic.

    Raises:
        ValueError: If the name is taken or is none, or the SQL refers to what has none.
    """
    name = made.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in RESERVED or _is_quantile(name):
        raise ValueError(
            f"A statistic cannot be called `{name}`: a name has small letters, digits and "
            "underscores, and is neither that of a column nor that of a quantile."
        )
    if name in _BUILT_IN:
        raise ValueError(f"There is a statistic `{name}` already. Give this one another name.")
    if made.sql is not None:
        made = replace(made, sql=_expanded(made.sql, name))
    _STATISTICS[name] = made
    return made


def _expanded(sql: str, name: str) -> str:
    """The SQL with that of other statistics put in."""
    known = {n: f"({s.sql})" for n, s in _STATISTICS.items() if s.sql is not None and n != name}
    try:
        return sql.format_map(known)
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"The SQL of `{name}` refers to {error}, which is no statistic that SQL can compute."
        ) from None


def needs_sums(name: str) -> bool:
    """Whether the statistic may read the sums: all do but quantiles."""
    return name in _STATISTICS


def known(s: Sketches, i: int) -> _bins.Known:
    """What row `i` knows of its values besides their bins."""
    _, zeros, _, pos_infs, neg_infs, _ = s.counts[i].tolist()
    low, high, _ = s.extrema[i].tolist()
    return _bins.Known(zeros, pos_infs, neg_infs, low, high)


def dense(s: Sketches) -> NDArray[np.int64]:
    """All bins, one row of 2048 per sketch."""
    table = np.zeros((len(s), N_BINS), dtype=np.int64)
    rows = np.repeat(np.arange(len(s)), np.diff(s.offsets))
    table[rows, s.bin_ids] = s.bin_counts
    return table


def _is_quantile(name: str) -> bool:
    return _quantile_of(name) is not None


def _quantile_of(name: str) -> float | None:
    if name == "median":
        return 0.5
    try:
        percent = float(name.removeprefix("p")) if name.startswith("p") else -1.0
    except ValueError:
        return None
    return percent / 100 if 0 <= percent <= 100 else None


def _count(name: str) -> Compute:
    column = COUNTS.index(name)
    return lambda s: s.counts[:, column].astype(np.float64)


def _sum(name: str) -> Compute:
    column = SUMS.index(name)
    return lambda s: np.where(_finite(s) > 0, s.sums[:, column], np.nan)


def _extremum(name: str) -> Compute:
    column = EXTREMA.index(name)

    def read(s: Sketches) -> NDArray[np.float64]:
        value: NDArray[np.float64] = s.extrema[:, column]
        return np.where(np.isfinite(value), value, np.nan)

    return read


def _finite(s: Sketches) -> NDArray[np.float64]:
    bad: NDArray[np.int64] = s.counts[:, 2:5].sum(axis=1)
    return np.subtract(s.counts[:, 0], bad, dtype=np.float64)


def _mean_of(column: str) -> Compute:
    at = SUMS.index(column)

    def read(s: Sketches) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.divide(s.sums[:, at], np.where(_finite(s) > 0, _finite(s), np.nan))

    return read


def _var(s: Sketches) -> NDArray[np.float64]:
    n = _finite(s)
    n_or_nan = np.where(n > 1, n, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        centred = s.sums[:, 2] - s.sums[:, 0] * (s.sums[:, 0] / n_or_nan)
    var: NDArray[np.float64] = np.maximum(centred, 0.0) / (n_or_nan - 1)
    return var


def _max_abs(s: Sketches) -> NDArray[np.float64]:
    found = np.maximum(np.abs(s.extrema[:, 0]), np.abs(s.extrema[:, 1]))
    return np.where(_finite(s) > 0, found, np.nan)


def _infs(s: Sketches) -> NDArray[np.float64]:
    infs: NDArray[np.int64] = s.counts[:, 3:5].sum(axis=1)
    return infs.astype(np.float64)


def _share(*columns: str) -> Compute:
    at = [COUNTS.index(c) for c in columns]

    def read(s: Sketches) -> NDArray[np.float64]:
        count = s.counts[:, 0].astype(np.float64)
        hits: NDArray[np.int64] = s.counts[:, at].sum(axis=1)
        share: NDArray[np.float64] = hits / np.where(count > 0, count, np.nan)
        return share

    return read


def _rm8(s: Sketches) -> NDArray[np.float64]:
    """Eighth root of the mean eighth power, from the bins.

    Each bin gives the mean of x**8 over its width. Normal numbers are known to a quarter of an
    octave, so the root is between 9 % too low and 15 % too high, and far closer where values are
    spread evenly inside bins. It is kept between `rm4` and `max_abs`, which bound it.
    """
    largest = _max_abs(s)
    scale = np.where(largest > 0, largest, 1.0)
    rows = np.repeat(np.arange(len(s)), np.diff(s.offsets))
    ids = s.bin_ids.astype(np.int64)
    held = s.bin_counts.astype(np.float64)
    held -= np.where(ids == _bins.INF_BIN, s.counts[rows, 3], 0)
    held -= np.where(ids == _bins.INF_BIN + _bins.HALF, s.counts[rows, 4], 0)
    ids &= _bins.HALF - 1
    edges = np.append(_bins.EDGES, np.inf)
    a, b = (np.minimum(edges[ids + i] / scale[rows], 1.0) for i in (0, 1))
    # Mean of x**8 on [a, b], written as a sum of products so that nothing cancels.
    power = sum(a**i * b ** (8 - i) for i in range(9)) / 9
    total = np.bincount(rows, weights=power * held, minlength=len(s))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = scale * (total / np.where(_finite(s) > 0, _finite(s), np.nan)) ** 0.125
    return np.clip(found, np.minimum(_STATISTICS["rm4"](s), largest), largest)


def _underflow(format_name: str) -> Compute:
    """Share of the finite, non-zero values that would become zero in a format."""
    form = FORMATS[format_name]
    limit = form.smallest / 2
    whole = int(np.searchsorted(_bins.EDGES, limit, side="left"))

    def read(s: Sketches) -> NDArray[np.float64]:
        rows = np.repeat(np.arange(len(s)), np.diff(s.offsets))
        is_small = s.bin_ids.astype(np.int64) % _bins.HALF < whole
        held = np.where(is_small, s.bin_counts, 0)
        zeros = s.counts[:, COUNTS.index("zeros")]
        small = np.bincount(rows, weights=held, minlength=len(s)) - zeros
        has_any = s.extrema[:, EXTREMA.index("min_abs")] < limit
        values = _finite(s) - zeros
        return np.where(has_any, small, 0.0) / np.where(values > 0, values, np.nan)

    return read


_FINITE: Final = "(count - nans - pos_infs - neg_infs)"
_MEAN: Final = "{} / nullif(" + _FINITE + ", 0)"
_WHERE_FINITE: Final = "case when " + _FINITE + " > 0 then {} end"
_VAR: Final = (
    f"greatest(sum_sq - sum * (sum / nullif({_FINITE}, 0)), 0.0) "
    f"/ nullif(greatest({_FINITE} - 1, 0), 0)"
)


def _definitions() -> tuple[Statistic, ...]:
    """The statistics that come with Sonde, in the order in which they are listed."""
    abs_mean, abs_mean_sql = _mean_of("sum_abs"), _MEAN.format("sum_abs")
    rms, rms_sql = lambda s: np.sqrt(_mean_of("sum_sq")(s)), f"sqrt({_MEAN.format('sum_sq')})"
    return (
        Statistic("mean", _mean_of("sum"), _MEAN.format("sum"), is_signed=True),
        Statistic("std", lambda s: np.sqrt(_var(s)), f"sqrt({_VAR})"),
        Statistic("var", _var, _VAR, is_main=False),
        Statistic(
            "norm", lambda s: np.sqrt(_sum("sum_sq")(s)), _WHERE_FINITE.format("sqrt(sum_sq)")
        ),
        Statistic("rms", rms, rms_sql),
        Statistic("rm2", rms, rms_sql, is_main=False, is_listed=False),  # rms by another name
        Statistic(
            "rm4",
            lambda s: _mean_of("sum_4")(s) ** 0.25,
            f"pow({_MEAN.format('sum_4')}, 0.25)",
            is_main=False,
        ),
        Statistic("rm8", _rm8, is_main=False),
        Statistic("min", _extremum("min"), "case when isfinite(min) then min end", is_signed=True),
        Statistic("max", _extremum("max"), "case when isfinite(max) then max end", is_signed=True),
        Statistic("abs_mean", abs_mean, abs_mean_sql),
        Statistic("mean_abs", abs_mean, abs_mean_sql, is_main=False, is_listed=False),  # the same
        Statistic(
            "min_abs",
            _extremum("min_abs"),
            "case when isfinite(min_abs) then min_abs end",
            is_main=False,
        ),
        Statistic(
            "max_abs",
            _max_abs,
            _WHERE_FINITE.format("greatest(abs(min), abs(max))"),
            is_main=False,
        ),
        Statistic(
            "sparsity",
            _share("zeros"),
            "zeros / nullif(count, 0)",
            format="share",
            is_main=False,
        ),
        Statistic(
            "nonfinite",
            _share("nans", "pos_infs", "neg_infs"),
            "(nans + pos_infs + neg_infs) / nullif(count, 0)",
            format="share",
            is_main=False,
        ),
        *(
            Statistic(
                f"underflow_{short}",
                _underflow(name),
                label=f"underflow in {short}",
                format="share",
                is_main=False,
            )
            for short, name in (
                ("e4m3", "float8_e4m3fn"),
                ("e5m2", "float8_e5m2"),
                ("fp16", "float16"),
            )
        ),
        Statistic("infs", _infs, "pos_infs + neg_infs", format="count", is_main=False),
        *(Statistic(n, _count(n), n, format="count", is_main=False) for n in COUNTS),
        *(
            Statistic(n, _sum(n), _WHERE_FINITE.format(n), is_signed=n == "sum", is_main=False)
            for n in SUMS
        ),
    )


_STATISTICS: Final[dict[str, Statistic]] = {made.name: made for made in _definitions()}
_BUILT_IN: Final = frozenset(_STATISTICS)

STATISTICS: Final[Mapping[str, Statistic]] = MappingProxyType(_STATISTICS)
"""Every statistic with a name of its own; quantiles (`p50`, `median`) come on top."""
