"""A run as a LogFrame."""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde._require import require
from sonde.logframe.schema import TENSOR_TYPES, Frame, validate
from sonde.record import COUNTS, Sketches
from sonde.sketch import bins, statistic
from sonde.store.reading.run import Run
from sonde.store.reading.sketch_rows import merge_rows
from sonde.store.reading.stat_queries import source_of

Convention = Literal["frexp", "floor"]

_STATS: Final = {
    "mean": "mean",
    "std": "std",
    "mean_abs": "abs_mean",
    "max_abs": "max_abs",
    "min_abs": "min_abs",
    "rm2": "rms",
    "rm4": "rm4",
    "rm8": "rm8",
    "zeros": "zeros",
    "nans": "nans",
    "infs": "infs",
}
_KINDS: Final = (*TENSOR_TYPES, "optim")


def of_run(
    run: Run,
    *,
    min_exp: int = -16,
    max_exp: int = 16,
    exponents: Convention = "frexp",
    phase: str = "train",
    rank: int | None = None,
) -> Frame:
    """A row per step and tensor: outputs, parameters, gradients of both, optimizer state.

    Counts of exponents are exact. With "frexp", the convention of files that Track & Visualize
    wrote, column n counts 2**(n - 1) <= |x| < 2**n; with "floor", that of its document,
    2**n <= |x| < 2**(n + 1). Smaller values count in -inf, larger ones and infinities in +inf.
    Zeros and NaN are in no column of exponents: `scalar_stats` has how many there are.
    """
    if exponents not in {"frexp", "floor"}:
        raise SondeError(f"`exponents` must be 'frexp' or 'floor', got {exponents!r}.")
    if min_exp >= max_exp:
        raise SondeError(f"`min_exp` must be below `max_exp`, got {min_exp} and {max_exp}.")
    try:
        pd = require("pandas", extra="pandas")
    except ImportError as error:
        raise SondeError(str(error)) from None
    rows, sketches = _records(run, phase, rank)
    sites = {row["name"]: row for row in run.sql("select * from sites", frame="arrow").to_pylist()}
    names = rows["name"].to_pylist()
    found = [sites.get(name, {}) for name in names]
    columns: dict[tuple[str, object], object] = {
        ("metadata", "name"): [_component(site) for site in found],
        ("metadata", "type"): [str(site.get("module_type") or "") for site in found],
        ("metadata", "tensor_type"): [_tensor_type(site) for site in found],
        ("metadata", "step"): rows["step"].to_numpy().astype(np.int64),
        ("metadata", "dtype"): [str(site.get("dtype") or "") for site in found],
    }
    for name, ours in _STATS.items():
        columns["scalar_stats", name] = statistic(ours)(sketches)
    shift = 1 if exponents == "frexp" else 0
    counts = _exponents(sketches, min_exp - shift, max_exp - shift)
    for i, n in enumerate((-math.inf, *range(min_exp, max_exp + 1), math.inf)):
        columns["exponent_counts", n] = counts[:, i]
    frame = pd.DataFrame(columns)
    frame.columns = pd.MultiIndex.from_tuples(list(columns))
    return validate(frame)


def _records(run: Run, phase: str, rank: int | None) -> tuple[pa.Table, Sketches]:
    kinds = ", ".join(f"'{kind}'" for kind in _KINDS)
    chosen, values = "", [phase]
    if rank is not None:
        chosen, values = " and rank = ?", [phase, rank]  # type: ignore[list-item]  # parameters
    rows = run.sql(
        f"select * from {source_of(rank)} where not replaced and kind in ({kinds}) and phase = ?"
        f"{chosen} and not ends_with(name, '/before_clip') order by step, name",
        values,
        frame="arrow",
    )
    if len(rows) == 0:
        raise SondeError(f"The run `{run.name}` has no sketch of these kinds in phase `{phase}`.")
    return merge_rows(rows, ("step", "name"))


def _exponents(sketches: Sketches, low: int, high: int) -> NDArray[np.int64]:
    """Counts below `low`, at each exponent from `low` to `high`, and above it."""
    table = np.zeros((len(sketches), high - low + 3), np.int64)
    rows = np.repeat(np.arange(len(sketches)), np.diff(sketches.offsets))
    magnitude = sketches.bin_ids.astype(np.int64) % bins.HALF
    is_finite = magnitude < bins.INF_BIN
    exponent = np.where(is_finite, bins.EXPONENTS[np.where(is_finite, magnitude, 0)], high + 1)
    place = np.clip(exponent - low + 1, 0, table.shape[1] - 1)
    np.add.at(table, (rows, place), sketches.bin_counts)
    table[:, 0] -= sketches.counts[:, COUNTS.index("zeros")]  # zeros are in the lowest bin
    return table


def _component(site: dict[str, object]) -> str:
    """The name of a component: a module's path; for parameters and their state the full name."""
    module, slot = str(site.get("module") or ""), str(site.get("slot") or "")
    if site.get("kind") in {"param", "param_grad", "optim"}:
        parameter = slot.partition("/")[0]
        return f"{module}.{parameter}" if module else parameter
    call = f"#{site['call']}" if site.get("call") else ""
    first = "" if slot in {"0", ""} else f"/{slot}"
    return f"{module or '.'}{call}{first}"


def _tensor_type(site: dict[str, object]) -> str:
    kind = str(site.get("kind") or "")
    if kind == "optim":
        return f"Optimiser_State.{str(site.get('slot') or '').partition('/')[2]}"
    return TENSOR_TYPES.get(kind, kind)
