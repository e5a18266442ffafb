"""HDF5: what goes into a file comes out of it."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sonde
from sonde.cli import main
from sonde.record import NumberBatch
from sonde.store import Writer
from sonde.store.reading import hdf5

h5py = pytest.importorskip("h5py")


def run_with(path, numbers):
    """A run of `{(step, phase, module, name): value}`."""
    writer = Writer(str(path), flush_s=60)
    for when in {(step, phase) for step, phase, _, _ in numbers}:
        own = [(m, n, v) for (s, p, m, n), v in numbers.items() if (s, p) == when]
        modules, names, values = zip(*own, strict=True)
        writer.numbers(NumberBatch(*when, names, modules, np.array(values)))
    writer.close("finished")
    return sonde.open(path)


def back(path):
    return {
        (int(step), s.phase, s.module, s.name): float(value)
        for s in hdf5.read(path)
        for step, value in zip(s.steps, s.values, strict=True)
    }


def test_a_thousand_names_come_back_equal(tmp_path):
    odd = [
        "a/b",
        "a b",
        "größe",
        "名前",
        "a//b",
        "/a",
        "a/",
        "keys",
        "a/keys",
        ".",
        "a/./b",
        "%2E",
        "😀",
    ]
    names = [f"{odd[i % len(odd)]}{i if i >= len(odd) else ''}" for i in range(1000)]
    numbers = {}
    for i, name in enumerate(names):
        module = None if i % 3 == 0 else ("h.0 x/ü" if i % 3 == 1 else "")
        for step in range(2):
            numbers[step, "train" if i % 5 else "eval", module, name] = i + step / 2
    with run_with(tmp_path / "run", numbers) as run:
        assert run.to_hdf5(tmp_path / "file.h5") == 1000
    assert back(tmp_path / "file.h5") == numbers


@settings(max_examples=10)
@given(
    st.dictionaries(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(["train", "eval", "a/b"]),
            st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
            | st.sampled_from(["keys", "values", "a/keys", "a", "."]),
        ),
        st.floats(allow_nan=False),
        min_size=1,
        max_size=8,
    )
)
def test_any_name_comes_back(tmp_path_factory, numbers):
    folder = tmp_path_factory.mktemp("hdf5")
    with run_with(folder / "run", numbers) as run:
        run.to_hdf5(folder / "file.h5")
    assert back(folder / "file.h5") == numbers


def test_groups_are_where_others_look_for_them(tmp_path):
    with run_with(
        tmp_path / "run", {(3, "train", "fc", "grad/rms"): 0.5, (3, "train", None, "loss"): 2.0}
    ) as run:
        run.to_hdf5(tmp_path / "file.h5")
    with h5py.File(tmp_path / "file.h5") as file:
        assert file["metrics/fc/grad/rms/keys"][:].tolist() == [3]
        assert file["metrics/fc/grad/rms/values"][:].tolist() == [0.5]
        assert file["scalars/loss/values"][:].tolist() == [2.0]


def test_nan_and_inf_come_back(tmp_path):
    given_ = {(i, "train", "fc", "x"): v for i, v in enumerate((np.nan, np.inf, -np.inf, 5e-324))}
    with run_with(tmp_path / "run", given_) as run:
        run.to_hdf5(tmp_path / "file.h5")
    np.testing.assert_array_equal(hdf5.read(tmp_path / "file.h5")[0].values, list(given_.values()))


def test_the_command_line_writes_the_same_file(tmp_path, capsys):
    run_with(tmp_path / "run", {(0, "train", "fc", "rms"): 1.0}).close()
    target = tmp_path / "out.h5"
    assert main(["export", str(tmp_path / "run"), "--hdf5", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(target), "series": 1}
    assert back(target) == {(0, "train", "fc", "rms"): 1.0}
    assert main(["export", str(tmp_path / "run"), "--hdf5", str(target)]) == 2
    assert "exists" in capsys.readouterr().err


def test_a_run_without_numbers_makes_an_empty_file(tmp_path):
    with run_with(tmp_path / "run", {}) as run:
        assert run.to_hdf5(tmp_path / "file.h5") == 0
    assert hdf5.read(tmp_path / "file.h5") == []


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with (
        run_with(tmp_path / "run", {}) as run,
        pytest.raises(sonde.SondeError, match="Cannot write"),
    ):
        run.to_hdf5(tmp_path / "nowhere" / "file.h5")
