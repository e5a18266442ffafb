"""Sketches as HTML, for notebooks: bars and numbers, without a script and without a library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sonde.sketch.model import Exponents, Histogram, Sketch

_WIDTH: Final = 360
_HEIGHT: Final = 90


def of_sketch(sketch: Sketch) -> str:
    """Values by power of two, and the numbers that are asked for most."""
    found = sketch.exponents()
    bad = sketch.nans + sketch.infs
    numbers = [
        ("values", f"{sketch.count:,}"),
        ("mean", _number(sketch.mean)),
        ("std", _number(sketch.std)),
        ("rms", _number(sketch.rms)),
        ("min", _number(sketch.min)),
        ("max", _number(sketch.max)),
        ("zeros", f"{sketch.zeros:,}"),
        ("NaN or Inf", f"{bad:,}"),
    ]
    return _figure(_exponent_bars(found), "values by power of two", numbers)


def of_exponents(found: Exponents) -> str:
    """Values by power of two."""
    numbers = [
        ("zeros", f"{found.zeros:,}"),
        ("NaN", f"{found.nans:,}"),
        ("Inf", f"{found.pos_infs + found.neg_infs:,}"),
    ]
    return _figure(_exponent_bars(found), "values by power of two", numbers)


def of_histogram(found: Histogram) -> str:
    """Counts between edges. Bars stand for density where edges are not equally far apart."""
    edges = [float(edge) for edge in found.edges]
    widths = [b - a for a, b in pairwise(edges)]
    heights = [float(n) / w if w > 0 else 0.0 for n, w in zip(found.counts, widths, strict=True)]
    numbers = [
        ("values", f"{float(found.counts.sum()):,.0f}"),
        ("outside", f"{found.outside:,.0f}"),
        ("zeros", f"{found.zeros:,}"),
        ("NaN or Inf", f"{found.nans + found.infs:,}"),
    ]
    low, high = edges[0], edges[-1]
    span = (high - low) or 1.0
    places = [((a - low) / span, w / span) for a, w in zip(edges, widths, strict=False)]
    chart = _bars(places, heights, _number(low), _number(high))
    return _figure(chart, "values per unit of value", numbers)


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, one below the other."""
    lines = "".join(
        f'<tr><th style="text-align:left;font-weight:normal;opacity:.7;padding:1px 12px 1px 0">'
        f"{escape(name)}</th>"
        f'<td style="text-align:left;padding:1px 0">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table style="border-collapse:collapse;margin:0">{lines}</table>'


def _exponent_bars(found: Exponents) -> str:
    exponents = [int(n) for n in found.exponents]
    if not exponents:
        return _bars([], [], "", "")
    low, high = exponents[0], exponents[-1] + 1
    places = [((n - low) / (high - low), 1 / (high - low)) for n in exponents]
    return _bars(places, [float(n) for n in found.counts], f"2^{low}", f"2^{high}")


def _bars(
    places: Sequence[tuple[float, float]], heights: Sequence[float], low: str, high: str
) -> str:
    """Bars at places between 0 and 1."""
    most = max((h for h in heights if math.isfinite(h)), default=0.0) or 1.0
    drawn = "".join(
        f'<rect x="{x * _WIDTH:.1f}" y="{_HEIGHT * (1 - h / most):.1f}" '
        f'width="{max(w * _WIDTH - 0.5, 0.5):.1f}" height="{_HEIGHT * h / most:.1f}"/>'
        for (x, w), h in zip(places, heights, strict=True)
        if h > 0 and math.isfinite(h)
    )
    ends = (
        f'<text x="0" y="{_HEIGHT + 13}" font-size="11" fill="currentColor">{escape(low)}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 13}" font-size="11" text-anchor="end" '
        f'fill="currentColor">{escape(high)}</text>'
    )
    base = (
        f'<path d="M0 {_HEIGHT}.5h{_WIDTH}" stroke="currentColor" stroke-opacity=".4" fill="none"/>'
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT + 18}" role="img" '
        f'style="overflow:visible"><g fill="#2f7fc1">{drawn}</g>{base}{ends}</svg>'
    )


def _figure(chart: str, title: str, numbers: Sequence[tuple[str, str]]) -> str:
    return (
        '<div style="display:flex;gap:24px;align-items:flex-start;font-size:12px">'
        f'<div><div style="opacity:.7">{escape(title)}</div>{chart}</div>{table(numbers)}</div>'
    )


def _number(value: float) -> str:
    return f"{value:.4g}"
