"""Many sketches in columns: packing, joining and merging by group, without a loop over rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sonde.record import COUNTS, EXTREMA, N_BINS, SUMS, Sketches


def from_dense(
    counts: NDArray[np.int64],
    sums: NDArray[np.float64],
    extrema: NDArray[np.float64],
    bins: NDArray[np.int64],
) -> Sketches:
    """Columns from dense bins (n, 2048): the empty bins are dropped."""
    rows, ids = np.nonzero(bins)
    offsets = np.zeros(len(bins) + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=len(bins)), out=offsets[1:])
    return Sketches(counts, sums, extrema, offsets, ids.astype(np.int16), bins[rows, ids])


def empty() -> Sketches:
    """No sketches at all."""
    return Sketches(
        np.zeros((0, len(COUNTS)), np.int64),
        np.zeros((0, len(SUMS)), np.float64),
        np.zeros((0, len(EXTREMA)), np.float64),
        np.zeros(1, np.int64),
        np.zeros(0, np.int16),
        np.zeros(0, np.int64),
    )


def without_bins(s: Sketches) -> Sketches:
    """The counts, sums and extrema alone."""
    offsets = np.zeros(len(s) + 1, np.int64)
    return Sketches(s.counts, s.sums, s.extrema, offsets, s.bin_ids[:0], s.bin_counts[:0])


def concatenate(parts: Sequence[Sketches]) -> Sketches:
    """The rows of all parts, in order."""
    if not parts:
        return empty()
    starts = np.cumsum([0] + [int(p.offsets[-1]) for p in parts])
    offsets = [p.offsets[:-1] + start for p, start in zip(parts, starts[:-1], strict=True)]
    return Sketches(
        np.concatenate([p.counts for p in parts]),
        np.concatenate([p.sums for p in parts]),
        np.concatenate([p.extrema for p in parts]),
        np.concatenate([*offsets, starts[-1:]]),
        np.concatenate([p.bin_ids for p in parts]),
        np.concatenate([p.bin_counts for p in parts]),
    )


def take(s: Sketches, rows: NDArray[np.int64]) -> Sketches:
    """The given rows, in the given order; a row may be asked for more than once."""
    lengths = np.diff(s.offsets)[rows]
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    at = np.arange(offsets[-1]) + np.repeat(s.offsets[rows] - offsets[:-1], lengths)
    return Sketches(
        s.counts[rows], s.sums[rows], s.extrema[rows], offsets, s.bin_ids[at], s.bin_counts[at]
    )


def cut(s: Sketches, first: int, last: int) -> Sketches:
    """Rows `first` up to `last`, without copying."""
    a, b = s.offsets[first], s.offsets[last]
    return Sketches(
        s.counts[first:last],
        s.sums[first:last],
        s.extrema[first:last],
        s.offsets[first : last + 1] - a,
        s.bin_ids[a:b],
        s.bin_counts[a:b],
    )


def merge_groups(s: Sketches, groups: NDArray[np.int64], n_groups: int) -> Sketches:
    """Row `i` goes into sketch `groups[i]`; a group without rows is the empty sketch."""
    counts = np.zeros((n_groups, len(COUNTS)), np.int64)
    np.add.at(counts, groups, s.counts)
    sums = np.zeros((n_groups, len(SUMS)), np.float64)
    np.add.at(sums, groups, s.sums)
    extrema = np.tile([np.inf, -np.inf, np.inf], (n_groups, 1))
    np.minimum.at(extrema[:, 0], groups, s.extrema[:, 0])
    np.maximum.at(extrema[:, 1], groups, s.extrema[:, 1])
    np.minimum.at(extrema[:, 2], groups, s.extrema[:, 2])
    keys = np.repeat(groups, np.diff(s.offsets)) * N_BINS + s.bin_ids
    held, where = np.unique(keys, return_inverse=True)
    bin_counts = np.zeros(len(held), np.int64)
    np.add.at(bin_counts, where, s.bin_counts)
    offsets = np.searchsorted(held, np.arange(n_groups + 1) * N_BINS)
    ids = (held % N_BINS).astype(np.int16)
    return Sketches(counts, sums, extrema, offsets.astype(np.int64), ids, bin_counts)
