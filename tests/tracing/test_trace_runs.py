"""Whole values in a run and in a file: what goes in comes out, and a crash loses nothing kept."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn

import sonde
from sonde.store import packing
from sonde.store.reading.traces import Lost, sources
from sonde.tracing import HDF5, hdf5, stack

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.complex64, torch.complex128),
]
PLAIN = [True, False, 0, -7, 2**40, 0.5, float("inf"), float("nan"), "text", "", "ü\n", None]


@dataclass
class Point:
    x: float
    tags: list


class Echo(nn.Module):
    """Its variable `v` is what it is called with."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, v):
        return None


def test_a_flush_of_the_watch_keeps_the_traced_values_of_every_step_that_ended(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        sonde.watch(model, optimizer, dir=tmp_path, name="run", every=1) as watch,
        sonde.trace(model, "forward.input", always=True),
    ):
        for step in range(3):
            model(torch.full((2, 2), float(step))).sum().backward()
            assert watch.flush(), "in the middle of a step it waits for what there is"
            optimizer.step()
            assert watch.flush()
            with sonde.open(tmp_path / "run") as run:
                assert run.trace("forward.input").iterations == list(range(step + 1))


def kept(tmp_path, values, into, **options):
    """The values after a way through a run or a file, with their dtypes if there are any."""
    model = Echo()
    if into == "run":
        with (
            sonde.watch(model, dir=tmp_path, name="run", every=1) as watch,
            sonde.trace(model, "forward.v", always=True, **options),
        ):
            for value in values:
                model(value)
                watch.step()
        with sonde.open(tmp_path / "run") as run:
            found = run.trace("forward.v")
            return list(found.values), found
    file = HDF5(tmp_path / "values.h5", **options)
    with sonde.trace(model, "forward.v", always=True, into=file):
        for value in values:
            model(value)
    found = hdf5.read(tmp_path / "values.h5", "forward.v")
    return found.values, found


def same(a, b):
    if isinstance(b, float) and b != b:
        return isinstance(a, float) and a != a
    return type(a) is type(b) and a == b


# -- round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize("into", ["run", "file"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_come_back_to_the_bit(tmp_path, dtype, into):
    torch.manual_seed(0)
    tensors = [(torch.randn(3, 4) * 3).to(dtype), torch.zeros(3, 4).to(dtype)]
    values, found = kept(tmp_path, tensors, into)
    assert found.iterations == [0, 1]
    for value, tensor in zip(values, tensors, strict=True):
        assert torch.equal(torch.from_numpy(np.ascontiguousarray(value)).to(dtype), tensor)
    name = str(dtype).removeprefix("torch.")
    if into == "run":
        assert found.dtypes == [name] * 2
        assert found.shapes == [(3, 4)] * 2
    else:
        import h5py

        with h5py.File(tmp_path / "values.h5") as file:
            assert file["forward.v"].attrs["dtype"] == name


@pytest.mark.parametrize("into", ["run", "file"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)], ids=str)
def test_scalars_and_empty_tensors_come_back(tmp_path, shape, into):
    values, _ = kept(tmp_path, [torch.ones(shape)], into)
    assert values[0].shape == shape
    assert np.array_equal(values[0], np.ones(shape))


def test_numbers_text_and_none_come_back_from_a_run(tmp_path):
    values, found = kept(tmp_path, PLAIN, "run")
    assert found.iterations == list(range(len(PLAIN)))
    for value, expected in zip(values, PLAIN, strict=True):
        assert same(value, expected), (value, expected)
    assert found.dtypes == [None] * len(PLAIN)


@pytest.mark.parametrize(
    "values",
    [
        [None, 1, 2, None],
        [None, "a", None, "ü\n", ""],
        [None, None],
        [0, 1, 2.5, float("inf")],
        [True, False],
        [None, np.ones((2, 2), np.float32), None],
    ],
    ids=str,
)
def test_numbers_text_and_none_come_back_from_a_file(tmp_path, values):
    back, found = kept(tmp_path, values, "file")
    assert found.iterations == list(range(len(values)))
    assert found.ranks == [0] * len(values)
    for value, expected in zip(back, values, strict=True):
        if isinstance(expected, np.ndarray):
            assert np.array_equal(value, expected)
        else:
            assert (value is None) == (expected is None)
            assert value == expected


def test_containers_and_objects_come_back_from_a_run_as_data(tmp_path):
    nested = {
        "list": [torch.arange(3), {"deep": (1, torch.ones(2, dtype=torch.bfloat16))}],
        3: {"a", "b"},
        "bytes": b"\0\xff",
        "point": Point(1.5, ["t"]),
        "complex": 1 + 2j,
        "array": np.arange(4, dtype=np.int16),
    }
    (value,), _ = kept(tmp_path, [nested], "run")
    assert list(value) == list(nested)
    assert value["list"][0].tolist() == [0, 1, 2]
    assert isinstance(value["list"][1]["deep"], tuple)
    assert value["list"][1]["deep"][1].tolist() == [1, 1]
    assert value[3] == {"a", "b"}
    assert value["bytes"] == b"\0\xff"
    assert isinstance(value["point"], packing.PackedObject)
    assert value["point"].type_name.endswith("Point")
    assert value["point"].fields == {"x": 1.5, "tags": ["t"]}
    assert value["complex"] == 1 + 2j
    assert value["array"].dtype == np.int16


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=1)
    ),
    max_leaves=8,
)


@given(nested)
@settings(max_examples=200)
def test_packing_is_undone_by_unpacking(value):
    value = {frozenset([1]): value, "in a set": {frozenset([2])}}
    tree, arrays = packing.flatten(value)
    back = packing.unflatten(json.loads(json.dumps(tree, allow_nan=False)), arrays)
    assert repr(back) == repr(value)


# -- HDF5 ---------------------------------------------------------------------------------------


def test_uneven_shapes_are_padded_or_ragged_as_asked(tmp_path):
    import h5py

    tensors = [torch.ones(2, 3), torch.ones(1, 5), torch.ones(4)]
    for uneven in ("pad", "ragged"):
        values, _ = kept(tmp_path, tensors, "file", uneven=uneven)
        assert [v.tolist() for v in values] == [t.tolist() for t in tensors]
    kept(tmp_path, tensors, "file", uneven="pad")
    with h5py.File(tmp_path / "values.h5") as file:
        assert file["forward.v"].shape == (3, 2, 5)
        assert file["forward.v"][1].tolist() == [[1] * 5, [0] * 5]


def test_options_of_a_file_take_effect(tmp_path):
    import h5py

    values, _ = kept(
        tmp_path,
        [torch.full((64, 64), 1.5, dtype=torch.float64), torch.full((64, 64), 2.5)],
        "file",
        float_dtype="float16",
        compression="gzip",
        compression_opts=9,
        shuffle=True,
    )
    assert values[1][0, 0] == 2.5
    with h5py.File(tmp_path / "values.h5") as file:
        d = file["forward.v"]
        assert (d.dtype, d.compression, d.compression_opts) == (np.float16, "gzip", 9)
        assert d.shuffle
        assert d.maxshape[0] is None
    values, _ = kept(tmp_path, [torch.arange(3), torch.arange(3)], "file", int_dtype="int16")
    assert values[0].dtype == np.int16


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"float_dtype": "real"}, "float_dtype"),
        ({"uneven": "cut"}, "uneven"),
        ({"existing_ok": False}, "exists"),
    ],
)
def test_wrong_options_of_a_file_are_errors(tmp_path, options, says):
    (tmp_path / "values.h5").touch()
    with pytest.raises(sonde.SondeError, match=says):
        HDF5(tmp_path / "values.h5", **options)
    with pytest.raises(sonde.SondeError, match="folder"):
        HDF5(tmp_path)


def test_containers_go_into_datasets_of_their_own_and_what_does_not_fit_is_said(tmp_path):
    import h5py

    model = Echo()
    with sonde.trace(model, "forward.v", into=tmp_path / "new" / "x.h5"):
        model({"a": torch.ones(2), "b": [1, "s"]})
        model({"a": torch.zeros(2), "b": [2, "t"]})
    with h5py.File(tmp_path / "new" / "x.h5") as file:
        assert file["forward.v.a"][:].tolist() == [[1, 1], [0, 0]]
        assert file["forward.v.b.0"][:].tolist() == [1, 2]
        assert file["forward.v.b.1"].asstr()[:].tolist() == ["s", "t"]
    trace = sonde.trace(model, "forward.v", into=tmp_path / "x.h5")
    for value in (torch.ones(2), "text", torch.zeros(2)):
        model(value)
    with pytest.warns(sonde.SondeWarning, match="holds values of kind array, got one of kind text"):
        trace.close()
    found = hdf5.read(tmp_path / "x.h5", "forward.v")
    assert found.iterations == [0, 2]
    assert [v.tolist() for v in found.values] == [[1, 1], [0, 0]]
    with pytest.raises(sonde.SondeError, match=r"It holds: forward\.v"):
        hdf5.read(tmp_path / "x.h5", "nothing")


# -- runs ---------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        q = self.fc(x)
        k = q * 2
        return k.sum()


def trained(tmp_path, paths, steps=4, **options):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    with (
        sonde.watch(model, optimizer, dir=tmp_path, name="run", every=2, step=10),
        sonde.trace(model, paths, **options) as trace,
    ):
        for _ in range(steps):
            x = torch.randn(3, 4)
            seen.append(model.fc(x).detach())
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()
    return sonde.open(tmp_path / "run"), seen, trace


def test_a_run_has_the_values_at_the_steps_of_the_watch_and_their_sketches(tmp_path):
    run, seen, trace = trained(tmp_path, ["forward.q", "forward", "fc"])
    assert len(trace.results) == 0
    q = run.trace("forward.q")
    assert q.iterations == [10, 11, 12, 13]
    assert q.names == ["forward.q"] * 4
    assert (q.ranks, q.calls, q.phases) == ([0] * 4, [0] * 4, ["train"] * 4)
    line = Net.forward.__code__.co_firstlineno + 1
    assert q.lines == [line] * 4
    for n, value in enumerate(q.values):
        assert np.array_equal(value, seen[n].numpy())
        assert run.sketch("./local/forward.q", step=10 + n).count == 12
    assert run.trace("forward.q", steps=(11, 12)).iterations == [11, 12]
    assert sorted(set(run.trace("**").names)) == ["fc", "forward", "forward.q"]
    assert len(q.values[1:3]) == 2
    stats = run.stats(kind="local")
    assert set(stats["module"]) == {"", "fc"}
    listed = {row["name"]: row for row in run.traces.to_dict("records")}
    assert listed["forward.q"]["values"] == 4
    with pytest.raises(sonde.SondeError, match=r"was not traced.*forward\.q"):
        run.trace("forward.p")


def test_the_source_of_each_method_is_kept(tmp_path):
    run, _, _ = trained(tmp_path, ["forward.q"])
    found = sources(run)["forward"]
    assert found.first_line == Net.forward.__code__.co_firstlineno
    assert found.text.splitlines()[1].strip() == "q = self.fc(x)"


def test_files_of_a_run_are_safetensors_that_others_read(tmp_path):
    run, seen, _ = trained(tmp_path, ["forward.q"])
    files = sorted(Path(run.path).glob("tensors/*/*.safetensors"))
    tensors = [t for file in files for t in load_file(file).values()]
    assert {t.tobytes() for t in tensors} == {s.numpy().tobytes() for s in seen}


def test_a_value_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path):
    run, seen, _ = trained(tmp_path, ["forward.q", "forward.k"], gather_every=100)
    file = next(Path(run.path).glob("tensors/*/*.safetensors"))
    data = bytearray(file.read_bytes())
    place = data.index(seen[1].numpy().tobytes())
    data[place] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    found = run.trace("forward.q")
    with pytest.warns(sonde.SondeWarning, match="checksum"):
        values = list(found.values)
    assert isinstance(values[1], Lost)
    assert [np.array_equal(values[n], seen[n].numpy()) for n in (0, 2, 3)] == [True] * 3
    file.unlink()
    again = run.trace("forward.q")
    with pytest.warns(sonde.SondeWarning, match="lacks file"):
        assert isinstance(again.values[0], Lost)


def test_values_that_callbacks_made_are_what_the_run_keeps(tmp_path):
    run, seen, _ = trained(tmp_path, ["forward.q"], gather_every=2, after_gather=[stack])
    q = run.trace("forward.q")
    assert [v.shape for v in q.values] == [(2, 3, 4)] * 2
    assert np.array_equal(q.values[1][0], seen[2].numpy())
    assert q.iterations == [11, 13]


def test_a_trace_that_outlives_its_watch_says_what_is_lost(tmp_path):
    model = Echo()
    watch = sonde.watch(model, dir=tmp_path, name="run", every=1)
    trace = sonde.trace(model, "forward.v")
    model(torch.ones(2))
    watch.step()
    model(torch.zeros(2))
    trace.flush()
    watch.close()
    model(torch.ones(2))
    with pytest.warns(sonde.SondeWarning, match="Close a trace before the watch"):
        trace.close()
    with sonde.open(tmp_path / "run") as run:
        assert run.trace("forward.v").iterations == [0]


KILLED = """
import sys, torch
from torch import nn
import sonde

class Net(nn.Module):
    def forward(self, x):
        q = x * 2
        return q

model = Net()
watch = sonde.watch(model, dir=sys.argv[1], name="run", every=1, flush_s=0.05)
sonde.trace(model, ["forward.q", "forward.x"])
step = 0
while True:
    model(torch.full((64,), float(step)))
    watch.step()
    step += 1
    if step % 10 == 0:
        watch.flush()
        print(step, flush=True)
"""


def test_values_in_a_run_survive_kill_9(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    safe = 0
    deadline = time.monotonic() + 300
    while safe < 50 and time.monotonic() < deadline:
        safe = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert safe >= 50
    with sonde.open(tmp_path / "run") as run:
        q = run.trace("forward.q")
        # A window is handed on when the next step begins, by a thread of its own.
        assert len(q) >= safe - 10
        assert q.iterations == list(range(len(q)))
        for step, value in zip(q.iterations, q.values, strict=True):
            assert value.tolist() == [2.0 * step] * 64
