"""Programs that import the originals by their own names run on the drop-ins with nothing edited."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def output_of(program, steps, *, drop_in=True):
    """What the program printed, and what was said on stderr."""
    runner = ["-m", "sonde.compat"] if drop_in else []
    command = [sys.executable, *runner, PROGRAMS / f"{program}_program.py", str(steps)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


def close(a, b):
    """Whether two numbers are the same to the precision in which they were computed."""
    return math.isclose(a, b, rel_tol=2e-5, abs_tol=2e-6)


def test_a_program_of_torch_module_monitor_runs():
    metrics, said = output_of("torch_module_monitor", 7)
    assert list(metrics) == ["0", "3", "6"]
    assert said.count("sonde: `import torch_module_monitor`") == 1
    first, last = metrics["0"], metrics["6"]
    assert first["parameter_difference/0.weight/distance"] == 0
    assert last["parameter_difference/0.weight/distance"] > 0
    clipped = sum(v**2 for k, v in last.items() if k.startswith("gradient/"))
    assert clipped == pytest.approx(0.01**2, rel=1e-2)
    assert last["activation/0/top[max]"] >= last["activation/0/mean"]


@pytest.mark.skipif(
    importlib.util.find_spec("torch_module_monitor") is None,
    reason="torch-module-monitor is not installed: make bench installs it",
)
def test_the_numbers_are_those_of_torch_module_monitor():
    ours, _ = output_of("torch_module_monitor", 7)
    theirs, _ = output_of("torch_module_monitor", 7, drop_in=False)
    assert ours.keys() == theirs.keys()
    for step, metrics in theirs.items():
        assert ours[step].keys() == metrics.keys()
        differing = {
            k: (ours[step][k], v) for k, v in metrics.items() if not close(ours[step][k], v)
        }
        assert differing == {}


def test_a_program_of_torchwatcher_runs_and_its_numbers_are_those_of_torch():
    found, said = output_of("torchwatcher", 3)
    assert said.count("sonde: `import neptune_torchwatcher`") == 1
    assert found["logged"].keys() == found["expected"].keys() == {"0", "1", "2"}
    for step, expected in found["expected"].items():
        logged = found["logged"][step]
        assert {k for k, v in expected.items() if not close(logged[k], v)} == set()


def test_a_program_of_tensortrace_runs_and_its_values_are_those_of_the_model(tmp_path):
    h5py = pytest.importorskip("h5py")
    found, said = output_of("tensortrace", 6)
    assert said.count("sonde: `import tensortrace`") == 1
    assert found["iterations"] == [1, 2, 3, 4, 5, 6]
    assert found["shape"] == [3, 2, 2, 3]
    assert found["traced"] == found["seen"]
    with h5py.File("values.h5") as file:
        assert file["forward.x"].shape == (6, 2, 3)
        assert file["forward.x_ranks"][:].tolist() == [0] * 6


def test_a_program_of_torchexplorer_runs():
    found, said = output_of("torchexplorer", 7)
    assert said.count("sonde: `import torchexplorer`") == 1
    assert found["size"] == [6, 5]
    calls = {(call["name"], call["output"][0]): call for call in found["calls"]}
    assert set(calls) == {("Linear 0", 100), ("ReLU 0", 100), ("Linear 0", 10), ("ReLU 1", 10)}
    first = calls["Linear 0", 100]
    assert (first["times"], first["size"]) == ([0, 2, 4, 6], [2, 1])
    assert first["params"] == first["grads"] == {"bias": [20] * 4, "weight": [200] * 4}


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torchexplorer", "pygraphviz")),
    reason="torchexplorer and pygraphviz are not installed",
)
def test_the_numbers_are_those_of_torchexplorer():
    assert output_of("torchexplorer", 7)[0] == output_of("torchexplorer", 7, drop_in=False)[0]


def test_a_program_of_tandv_runs_and_its_numbers_are_those_of_torch():
    pytest.importorskip("pandas")
    found, said = output_of("tandv", 3)
    assert said.count("sonde: `import tandv`") == 1
    assert found["logged"].keys() == found["expected"].keys()
    assert len(found["logged"]) == 6
    for key, expected in found["expected"].items():
        logged = found["logged"][key]
        assert logged["exponents"] == expected.pop("exponents")
        assert {name for name, v in expected.items() if not close(logged[name], v)} == set()
