"""Sketches out of a run: rows of `records` as columns of sketches, merged by any key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sonde._errors import RunError
from sonde.record import COUNTS, EXTREMA, N_BINS, SUMS, Sketches
from sonde.sketch import merge_groups

COLUMNS: Final = ", ".join((*COUNTS, *SUMS, *EXTREMA, "bin_ids", "bin_counts"))
"""What a query must select for `from_rows`."""

WITHOUT_SUMS: Final = ", ".join((*COUNTS, *EXTREMA, "bin_ids", "bin_counts"))
"""What it must select where nothing reads the sums, which are zeros then."""

Key = tuple[object, ...]

_LARGEST_CODE: Final = 2**62


D = TypeVar("D", bound=np.generic)


def from_rows(rows: pa.Table) -> Sketches:
    """Rows with the columns of a sketch, as sketches. Refuses bins that cannot be."""
    ids, bin_counts = _flat(_whole(rows, "bin_ids")), _flat(_whole(rows, "bin_counts"))
    lengths = _lengths(rows["bin_ids"])
    if len(ids) != len(bin_counts) or (len(ids) and not 0 <= ids.min() <= ids.max() < N_BINS):
        raise RunError(
            "A segment of this run holds bins that cannot be: it was not written by Sonde."
        )
    offsets = np.zeros(rows.num_rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Sketches(
        _matrix(rows, COUNTS, np.int64),
        _matrix(rows, SUMS, np.float64) if SUMS[0] in rows.schema.names else _zeros(rows),
        _matrix(rows, EXTREMA, np.float64),
        offsets,
        ids.astype(np.int16, copy=False),
        bin_counts.astype(np.int64, copy=False),
    )


def merge_by(rows: pa.Table, columns: Sequence[str]) -> tuple[list[Key], Sketches]:
    """One sketch per distinct value of the columns, in order of first occurrence."""
    found, sketches = merge_rows(rows, columns)
    if not columns:
        return [()], sketches
    return list(zip(*(found[c].to_pylist() for c in columns), strict=True)), sketches


def merge_rows(rows: pa.Table, columns: Sequence[str]) -> tuple[pa.Table, Sketches]:
    """The distinct values of the columns in order of first occurrence, and a sketch for each."""
    groups, firsts = _groups(rows, columns)
    found = rows.select(list(columns)).take(pa.array(firsts))
    if len(firsts) == rows.num_rows and columns:
        return found, from_rows(rows)  # nothing to merge: each row is its own group, in order
    return found, merge_groups(from_rows(rows), groups, len(firsts))


def merged_parts(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[pa.Table, Sketches]]:
    """As `merge_rows`, batch by batch where no two rows are of the same group: without a copy."""
    if len(np.unique(_codes(rows, columns))) < rows.num_rows:
        yield merge_rows(rows, columns)
        return
    for batch in rows.to_batches():
        part = pa.Table.from_batches([batch])
        yield part.select(list(columns)), from_rows(part)


def _groups(rows: pa.Table, columns: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row the number of its group, and of each group the first row."""
    if not columns:
        return np.zeros(rows.num_rows, np.int64), np.zeros(1, np.int64)
    codes = _codes(rows, columns)
    _, first, groups = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[groups], np.sort(first)


def _codes(rows: pa.Table, columns: Sequence[str]) -> NDArray[np.int64]:
    """A number for each row: the same for two rows where their columns hold the same."""
    combined, size = np.zeros(rows.num_rows, np.int64), 1
    for column in columns:
        encoded = _whole(rows, column).combine_chunks().dictionary_encode()
        known = max(len(encoded.dictionary), 1)
        if size > _LARGEST_CODE // known:
            found, combined = np.unique(combined, return_inverse=True)
            size = len(found)
        combined = combined * known + encoded.indices.to_numpy(zero_copy_only=False)
        size *= known
    return combined


def _whole(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """The column, which no writer leaves empty."""
    if rows[column].null_count:
        raise RunError(f"A segment of this run holds a row without `{column}`.")
    return rows[column]


def _matrix(rows: pa.Table, columns: Sequence[str], dtype: type[D]) -> NDArray[D]:
    matrix = np.empty((rows.num_rows, len(columns)), dtype)
    for i, column in enumerate(columns):
        matrix[:, i] = _whole(rows, column).to_numpy()
    return matrix


def _zeros(rows: pa.Table) -> NDArray[np.float64]:
    return np.zeros((rows.num_rows, len(SUMS)))


def _flat(column: pa.ChunkedArray) -> NDArray[np.integer]:
    parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    if len(parts) == 1:
        return np.asarray(parts[0])  # no copy: there are millions
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _lengths(column: pa.ChunkedArray) -> NDArray[np.int64]:
    parts = [chunk.value_lengths().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
