"""A run as a LogFrame."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from sonde._errors import SondeError
from sonde._require import require
from sonde.kernels.reference import sketch
from sonde.logframe.schema import TENSOR_TYPES, Frame, validate
from sonde.metrics.names import of_metric
from sonde.record import COUNTS, Kind, Sketches
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
    metric: str | None = None,
    short_names: bool = False,
) -> Frame:
    """A row per step and tensor: outputs, parameters, gradients of both, optimizer state.

    Counts of exponents are exact. With "frexp", the convention of files that Track & Visualize
    wrote, column n counts 2**(n - 1) <= |x| < 2**n; with "floor", that of its document,
    2**n <= |x| < 2**(n + 1). Smaller values count in -inf, larger ones and infinities in +inf.
    Zeros and NaN are in no column of exponents: `scalar_stats` has how many there are.

    `metric` is the name of a metric of the run whose numbers become columns of `scalar_stats`:
    under its name, or where it returns several numbers, under theirs. With `short_names`, names
    are those of Track & Visualize: the model is "", and a weight has the name of its module.
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
        ("metadata", "name"): [_component(site, is_short=short_names) for site in found],
        ("metadata", "type"): [str(site.get("module_type") or "") for site in found],
        ("metadata", "tensor_type"): [_tensor_type(site) for site in found],
        ("metadata", "step"): rows["step"].to_numpy().astype(np.int64),
        ("metadata", "dtype"): [str(site.get("dtype") or "") for site in found],
    }
    for name, values in _statistics(sketches).items():
        columns["scalar_stats", name] = values
    if metric is not None:
        columns |= _numbers(run, metric, found, rows["step"].to_pylist(), phase)
    counts = _exponents(sketches, min_exp, max_exp, exponents)
    for i, n in enumerate((-math.inf, *range(min_exp, max_exp + 1), math.inf)):
        columns["exponent_counts", n] = counts[:, i]
    frame = pd.DataFrame(columns)
    frame.columns = pd.MultiIndex.from_tuples(list(columns))
    frame.attrs["exponents"] = exponents
    return validate(frame)


def describe(
    values: ArrayLike, *, min_exp: int = -16, max_exp: int = 16, exponents: Convention = "frexp"
) -> dict[str, dict[str, list[float]] | dict[str, float]]:
    """The statistics and the counts of exponents that a LogFrame has of an array.

    `{"scalar_stats": {"mean": ...}, "exp_hist": {"hist": [...], "bins": [...]}}`, where the first
    and the last bin stand for -inf and +inf.
    """
    found = sketch(values)
    columns = found.columns()
    stats = {name: float(each[0]) for name, each in _statistics(columns).items()}
    magnitude = np.abs(np.asarray(values, np.float64))
    if found.max_abs > 0 and found.finite == found.count:  # with all values at hand it is exact
        share = magnitude / found.max_abs
        stats["rm8"] = float(found.max_abs * np.mean(share**8) ** 0.125)
    counts = _exponents(columns, min_exp, max_exp, exponents)[0]
    bins = list(range(min_exp - 1, max_exp + 2))
    return {"scalar_stats": stats, "exp_hist": {"hist": counts.tolist(), "bins": bins}}


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


def _statistics(sketches: Sketches) -> dict[str, NDArray[np.float64]]:
    """Statistics under the names of Track & Visualize, for which 0 is a magnitude like others."""
    found = {name: statistic(ours)(sketches) for name, ours in _STATS.items()}
    found["min_abs"] = np.where(found["zeros"] > 0, 0.0, found["min_abs"])
    return found


def _numbers(
    run: Run, metric: str, sites: Sequence[Mapping[str, object]], steps: Sequence[int], phase: str
) -> dict[tuple[str, object], object]:
    """Columns of a metric: the number of each site at its step, NaN where there is none."""
    rows = run.metrics(phase=phase, missing="ok", frame="arrow").to_pylist()
    known = {(row["module"], row["name"], row["step"]): row["value"] for row in rows}
    labels = [_label(metric, site) for site in sites]
    parts = {
        name.removeprefix(label).removeprefix("/")
        for module, name, _ in known
        for label in {label for at, label in labels if at == module}
        if name == label or name.startswith(f"{label}/")
    }
    return {
        ("scalar_stats", part or metric): np.array(
            [
                known.get((module, f"{label}/{part}" if part else label, step), math.nan)
                for (module, label), step in zip(labels, steps, strict=True)
            ],
            np.float64,
        )
        for part in sorted(parts)
    }


def _label(metric: str, site: Mapping[str, object]) -> tuple[str, str]:
    """Module and name under which a run keeps a metric of a site."""
    module, slot = str(site.get("module") or ""), str(site.get("slot") or "0")
    kind = cast("Kind", str(site.get("kind") or "output"))
    return module, of_metric(metric, (kind,), module, slot, is_difference=False).name


def _exponents(
    sketches: Sketches, low: int, high: int, convention: Convention
) -> NDArray[np.int64]:
    """Counts below `low`, at each exponent from `low` to `high`, and above it."""
    if convention == "frexp":
        low, high = low - 1, high - 1
    table = np.zeros((len(sketches), high - low + 3), np.int64)
    rows = np.repeat(np.arange(len(sketches)), np.diff(sketches.offsets))
    magnitude = sketches.bin_ids.astype(np.int64) % bins.HALF
    is_finite = magnitude < bins.INF_BIN
    exponent = np.where(is_finite, bins.EXPONENTS[np.where(is_finite, magnitude, 0)], high + 1)
    place = np.clip(exponent - low + 1, 0, table.shape[1] - 1)
    np.add.at(table, (rows, place), sketches.bin_counts)
    table[:, 0] -= sketches.counts[:, COUNTS.index("zeros")]  # zeros are in the lowest bin
    return table


def _component(site: Mapping[str, object], *, is_short: bool) -> str:
    """The name of a component: a module's path; for parameters and their state the full name."""
    module, slot = str(site.get("module") or ""), str(site.get("slot") or "")
    if site.get("kind") in {"param", "param_grad", "optim"}:
        parameter = slot.partition("/")[0]
        if is_short and module and parameter in {"weight", "kernel"}:
            return module
        return f"{module}.{parameter}" if module else parameter
    call = f"#{site['call']}" if site.get("call") else ""
    first = "" if slot in {"0", ""} else f"/{slot}"
    if is_short and not (module or call or first):
        return ""
    return f"{module or '.'}{call}{first}"


def _tensor_type(site: dict[str, object]) -> str:
    kind = str(site.get("kind") or "")
    if kind == "optim":
        return f"Optimiser_State.{str(site.get('slot') or '').partition('/')[2]}"
    return TENSOR_TYPES.get(kind, kind)
