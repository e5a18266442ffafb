"""The schema of a LogFrame: what its columns must be."""

from __future__ import annotations

import math
from typing import Any, Final

from sonde._errors import SondeError

Frame = Any
"""pandas.DataFrame. Any: pandas may not be installed."""

METADATA: Final = ("name", "type", "tensor_type", "step", "dtype")
GROUPS: Final = ("metadata", "scalar_stats", "exponent_counts")
TENSOR_TYPES: Final = {
    "output": "Activation",
    "output_grad": "Gradient",
    "param": "Weights",
    "param_grad": "Weight_Gradients",
}
"""What Track & Visualize calls each kind. Optimizer state is `Optimiser_State.exp_avg` and so on.
"""


def validate(frame: Frame) -> Frame:
    """The frame, if it is a LogFrame.

    Raises:
        SondeError: It is not one. The message names the columns.
    """
    if getattr(getattr(frame, "columns", None), "nlevels", 1) != 2:
        raise SondeError(
            "A LogFrame has columns of two levels, such as ('metadata', 'step'). "
            f"Got {type(frame).__name__}."
        )
    columns = list(frame.columns)
    problems = [
        *_missing(columns),
        *_wrong_types(frame, columns),
        *(f"`{g}` is no part of a LogFrame" for g in _strange(columns)),
    ]
    if problems:
        raise SondeError(f"This is not a LogFrame: {'; '.join(problems)}.")
    return frame


def exponent(column: object) -> float:
    """The exponent that a column of `exponent_counts` stands for: a whole number or an infinity.

    Files keep names as text, so `"-3"` and `"-inf"` count as well.
    """
    try:
        found = float(column)  # type: ignore[arg-type]  # any object: checked by the call
    except (TypeError, ValueError):
        return math.nan
    return found if math.isinf(found) or found.is_integer() else math.nan


def frexp_shift(frame: Frame) -> int:
    """What to take off the number of a column for the power of two at which it begins.

    Column n of files of Track & Visualize counts 2**(n - 1) <= |x| < 2**n, which is 1. In frames
    made with `exponents="floor"` it is 0.
    """
    return 0 if frame.attrs.get("exponents") == "floor" else 1


def _missing(columns: list[tuple[object, object]]) -> list[str]:
    there = set(columns)
    found = [f"`('metadata', '{n}')` is missing" for n in METADATA if ("metadata", n) not in there]
    if not any(group == "scalar_stats" for group, _ in columns):
        found.append("it has no column of `scalar_stats`")
    exponents = [exponent(name) for group, name in columns if group == "exponent_counts"]
    found += [
        f"`('exponent_counts', {sign}inf)` is missing"
        for sign, value in (("-", -math.inf), ("+", math.inf))
        if value not in exponents
    ]
    if not any(math.isfinite(e) for e in exponents):
        found.append("it has no column of `exponent_counts` for an exponent")
    return found


def _wrong_types(frame: Frame, columns: list[tuple[object, object]]) -> list[str]:
    found = []
    for column in columns:
        kind = frame[column].dtype.kind if hasattr(frame[column], "dtype") else "?"
        group, name = column
        wants_number = group != "metadata" or name == "step"
        if group == "exponent_counts" and math.isnan(exponent(name)):
            found.append(f"`{name}` of `exponent_counts` is no exponent")
        if wants_number and kind not in "iufb":
            found.append(f"`{column}` must hold numbers")
        if group == "metadata" and name in METADATA and name != "step" and kind in "iufb":
            found.append(f"`{column}` must hold text")
    return found


def _strange(columns: list[tuple[object, object]]) -> list[object]:
    return list(dict.fromkeys(group for group, _ in columns if group not in GROUPS))
