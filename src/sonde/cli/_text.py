"""How verbs print: for people on a terminal, as JSON for programs."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from rich.console import Console

_PIPED_WIDTH: Final = 120
_ODD: Final = re.compile(r"[^\x20-\x7e\n]")
_BARS: Final = "▁▂▃▄▅▆▇█"


def console() -> Console:
    """Where people read. Wide enough for a table when it is not a terminal."""
    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(width=width, highlight=False, emoji=False, markup=False)


def say(text: str) -> None:
    """A line on standard output, which may hold text of a run."""
    print(clean(text))


def print_json(value: object) -> None:
    """Valid JSON on standard output: NaN and infinities are null, and what could steer a terminal
    is escaped."""
    text = json.dumps(to_json(value), indent=1, ensure_ascii=False)
    print(_ODD.sub(_escaped, text))


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def to_json(value: object) -> object:
    """The value in types that JSON has."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def clean(text: object) -> str:
    """Text of a run for a terminal: characters that could steer it are shown, not sent."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def number(value: float | None) -> str:
    """A number in few characters."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, int) or (
        math.isfinite(value) and value == int(value) and abs(value) < 1e6
    ):
        return f"{int(value):,}"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    return f"{value:.2e}"


def bytes_text(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError


def duration_text(seconds: float) -> str:
    """How long, in the two largest units that matter."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if hours == 0:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days == 0 else f"{days} d {hours % 24} h"


def spark(values: Sequence[float], width: int = 24, *, log: bool = False) -> str:
    """A line of small bars, one per value or per stretch of values. `·` where there is none."""
    kept = [_logged(v) if log else float(v) for v in _thinned(values, width)]
    finite = [v for v in kept if math.isfinite(v)]
    if not finite:
        return "·" * len(kept)
    low, high = min(finite), max(finite)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    middle = len(_BARS) // 2 - 1
    return "".join(
        "·" if not math.isfinite(v) else _BARS[round((v - low) * scale) if scale else middle]
        for v in kept
    )


def plural(n: int, word: str) -> str:
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def _thinned(values: Sequence[float], width: int) -> Iterable[float]:
    if len(values) <= width:
        return values
    edges = [len(values) * i // width for i in range(width + 1)]
    return [_mean(values[a:b]) for a, b in pairwise(edges)]


def _mean(values: Sequence[float]) -> float:
    finite = [v for v in values if math.isfinite(v)]
    return sum(finite) / len(finite) if finite else math.nan


def _logged(value: float) -> float:
    return math.log10(value) if value > 0 and math.isfinite(value) else math.nan
