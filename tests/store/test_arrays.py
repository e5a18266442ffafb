"""Arrow arrays made from buffers are those that `pyarrow.array` makes, without loading pandas."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.store import arrays

INT16, INT32, INT64 = (st.integers(-(2**n), 2**n - 1) for n in (15, 31, 63))
VALUES = {
    pa.bool_(): st.booleans(),
    pa.int16(): INT16,
    pa.int32(): INT32,
    pa.int64(): INT64,
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(),
    pa.list_(pa.int64()): st.lists(INT64, max_size=4),
    pa.list_(pa.int16()): st.lists(INT16, max_size=4),
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@given(data=st.data())
def test_lists_become_the_arrays_that_pyarrow_makes(kind, data):
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=20))
    found = arrays.of_type(values, kind)
    found.validate(full=True)
    assert found.equals(pa.array(values, kind))


@pytest.mark.parametrize("kind", [k for k in VALUES if k in arrays._DTYPES], ids=str)
@pytest.mark.parametrize("stride", [1, 3])
def test_numpy_arrays_become_the_arrays_that_pyarrow_makes(kind, stride):
    values = np.arange(40).astype(arrays._DTYPES[kind])[::stride]
    found = arrays.of_type(values, kind)
    found.validate(full=True)
    assert found.equals(pa.array(values, kind))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", 3], pa.string()),
        (["\udc80"], pa.string()),
        ([1.5], pa.int64()),
        ([2**31], pa.int32()),
        (["a"], pa.float64()),
        (np.array([1.5]), pa.int64()),
        ([[1.5]], pa.list_(pa.int64())),
    ],
)
def test_values_of_another_type_are_refused(values, kind):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        arrays.of_type(values, kind)


@given(st.lists(st.text(), min_size=1, max_size=20), st.data())
def test_texts_are_taken_by_number(texts, data):
    at = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=20))
    found = arrays.taken(arrays.strings(texts), np.array(at, np.int64))
    found.validate(full=True)
    assert found.to_pylist() == [texts[i] for i in at]


@given(st.lists(st.lists(st.none() | INT64, max_size=5), min_size=1), st.integers(0, 3))
def test_bounds_are_the_least_and_the_greatest(parts, cut):
    column = pa.chunked_array([pa.array(p, pa.int64()) for p in parts]).slice(cut)
    known = [v for v in column.to_pylist() if v is not None]
    if known:
        assert arrays.bounds(column) == (min(known), max(known))


WATCHED = """
    import json, sys, tempfile
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())  # which loads the compiler
    before = set(sys.modules)
    import sonde

    with tempfile.TemporaryDirectory() as folder:
        with sonde.watch(model, optimizer, every=1, dir=folder, name="run") as watch:
            for step in range(3):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                watch.log(loss=1.0)
        loaded = {name.split(".")[0] for name in set(sys.modules) - before}
        loaded |= {"pyarrow.compute"} & (set(sys.modules) - before)
        run = sonde.open(f"{folder}/run", frame="arrow")
        print(json.dumps([sorted(loaded), run.steps, run.stats().num_rows]))
"""


def test_a_watched_training_loads_nothing_that_only_readers_need():
    """They take 60 MB: pandas is what `pyarrow.array` would load."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WATCHED)], capture_output=True, text=True, check=True
    )
    loaded, steps, rows = json.loads(done.stdout.splitlines()[-1])
    assert not {"pandas", "polars", "duckdb", "pyarrow.compute"} & set(loaded)
    assert steps == [0, 1, 2]
    assert rows > 30
