"""Rows of sketches are merged by any columns, however many values those have."""

import numpy as np
import pyarrow as pa
import pytest

from sonde.record import COUNTS, EXTREMA, SUMS
from sonde.store.reading import sketch_rows


def rows_of(columns):
    """Sketches of one value each, in bin 5, with these columns beside them."""
    n = len(next(iter(columns.values())))
    whole = {name: pa.array(np.ones(n, np.int64)) for name in COUNTS}
    real = {name: pa.array(np.ones(n)) for name in (*SUMS, *EXTREMA)}
    bins = {
        "bin_ids": pa.array([[5]] * n, pa.list_(pa.int16())),
        "bin_counts": pa.array([[1]] * n, pa.list_(pa.int64())),
    }
    return pa.table({**columns, **whole, **real, **bins})


@pytest.mark.parametrize("distinct", [3, 20_000], ids=["few values", "more than a number can code"])
def test_rows_with_the_same_columns_are_merged_in_order_of_first_occurrence(distinct):
    rng = np.random.default_rng(0)
    names = ["a", "b", "c", "d", "e"]
    values = rng.integers(0, distinct, (distinct, 5))
    values[: min(distinct, 1000)] = np.arange(min(distinct, 1000))[:, None]
    values = np.concatenate([values, values[::-1]])
    columns = {name: values[:, i] for i, name in enumerate(names)}
    found, merged = sketch_rows.merge_rows(rows_of(columns), names)
    expected = {}
    for key in map(tuple, values.tolist()):
        expected[key] = expected.get(key, 0) + 1
    assert list(zip(*(found[name].to_pylist() for name in names), strict=True)) == list(expected)
    assert merged.counts[:, 0].tolist() == list(expected.values())
