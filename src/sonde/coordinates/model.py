"""What a coordinate check has found: terms against width, their slopes, and a verdict.

A term is the root mean square, over the coordinates of a module's output, of a change since the
beginning (see `sonde.metrics.torch.rcc`). If training is to be the same at every width it must not
depend on the width: its slope, of its logarithm over that of the width, must be about 0. A slope of
1 is what one gets where updates add up over all inputs of a layer and nothing divides by their
number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

Term = Literal["effective", "propagating"]
Verdict = Literal["stable", "grows", "vanishes", "unknown"]

TERMS: Final[tuple[Term, ...]] = ("effective", "propagating")

TOLERANCE: Final = 0.3
"""How far a slope may be from 0. Slopes of theory are multiples of one half; at widths below a
thousand, what is 0 in theory comes out as -0.2 (`examples/coordinates.py`)."""

_EXTENT: Final = {"effective": "(W_t - W_0) x_t", "propagating": "W_0 (x_t - x_0)"}


@dataclass(frozen=True, slots=True)
class TermScaling:
    """One term of one module: its value at each width, its slope, and what that means."""

    module: str
    term: Term
    values: tuple[float, ...]
    slope: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Coordinates:
    """A check at several widths, after some updates."""

    widths: tuple[int, ...]
    step: int
    lines: tuple[TermScaling, ...]

    @property
    def is_stable(self) -> bool:
        """Whether what modules' own updates do is the same at every width, everywhere."""
        return all(line.verdict == "stable" for line in self.lines if line.term == "effective")

    def line(self, module: str, term: Term = "effective") -> TermScaling:
        """The line of that module and term."""
        for line in self.lines:
            if (line.module, line.term) == (module, term):
                return line
        known = ", ".join(sorted({line.module for line in self.lines}))
        raise KeyError(f"no term `{term}` of `{module}`; there are modules {known}")

    def as_dict(self) -> dict[str, object]:
        """All of it as plain data."""
        return {
            "widths": list(self.widths),
            "step": self.step,
            "is_stable": self.is_stable,
            "lines": [
                {
                    "module": line.module,
                    "term": line.term,
                    "values": list(line.values),
                    "slope": line.slope,
                    "verdict": line.verdict,
                }
                for line in self.lines
            ],
        }

    def __str__(self) -> str:
        head = ["module", "term", *(f"width {w}" for w in self.widths), "slope", ""]
        rows = [
            [
                line.module,
                _EXTENT[line.term],
                *(f"{v:.3g}" for v in line.values),
                f"{line.slope:+.2f}",
                line.verdict,
            ]
            for line in self.lines
        ]
        sizes = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        text = [
            "  ".join(
                cell.ljust(n) if i < 2 or i == len(head) - 1 else cell.rjust(n)
                for i, (cell, n) in enumerate(zip(row, sizes, strict=True))
            ).rstrip()
            for row in [head, *rows]
        ]
        verdict = "the same at every width" if self.is_stable else "not the same at every width"
        return "\n".join([*text, "", f"After {self.step} updates, what updates do is {verdict}."])


def of_values(
    widths: Sequence[int],
    step: int,
    values: Mapping[tuple[str, Term], Sequence[float]],
    *,
    tolerance: float = TOLERANCE,
) -> Coordinates:
    """Slopes and verdicts of values at each width, in the order in which modules are given.

    What is 0 at every width (the input of the first layer does not change) has no line.
    """
    lines = []
    for (module, term), several in values.items():
        if not any(several):
            continue
        slope = slope_of(widths, several)
        lines.append(TermScaling(module, term, tuple(several), slope, verdict_of(slope, tolerance)))
    return Coordinates(tuple(widths), step, tuple(lines))


def slope_of(widths: Sequence[int], values: Sequence[float]) -> float:
    """Slope of the logarithm of the values over that of the widths, by least squares.

    NaN if a value is not positive and finite, or if there are fewer than two.
    """
    y = np.asarray(values, dtype=np.float64)
    if len(y) < 2 or not np.isfinite(y).all() or not (y > 0).all():
        return float("nan")
    x = np.log(np.asarray(widths, dtype=np.float64))
    x = x - x.mean()
    return float((x * np.log(y)).sum() / (x * x).sum())


def verdict_of(slope: float, tolerance: float = TOLERANCE) -> Verdict:
    """What a slope means."""
    if not np.isfinite(slope):
        return "unknown"
    if abs(slope) <= tolerance:
        return "stable"
    return "grows" if slope > 0 else "vanishes"
