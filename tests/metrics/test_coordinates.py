"""The coordinate check: slopes, verdicts, two parametrisations, the command line, the figure."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sonde
from sonde.cli import main
from sonde.coordinates import model

EXAMPLE = Path(__file__).parents[2] / "examples" / "coordinates.py"


@given(slope=st.floats(-2, 2), factor=st.floats(1e-3, 1e3))
def test_the_slope_of_a_power_is_its_exponent(slope, factor):
    widths = [32, 64, 256]
    assert model.slope_of(widths, [factor * w**slope for w in widths]) == pytest.approx(
        slope, abs=1e-9
    )


@pytest.mark.parametrize(
    ("slope", "verdict"),
    [
        (0.0, "stable"),
        (0.29, "stable"),
        (-0.29, "stable"),
        (0.5, "grows"),
        (-1.0, "vanishes"),
        (math.nan, "unknown"),
    ],
)
def test_verdicts(slope, verdict):
    assert model.verdict_of(slope) == verdict


def test_values_that_have_no_slope():
    assert math.isnan(model.slope_of([1, 2], [0.0, 1.0]))
    assert math.isnan(model.slope_of([1, 2], [math.nan, 1.0]))
    assert math.isnan(model.slope_of([1], [1.0]))


def test_what_never_changes_has_no_line():
    found = model.of_values([1, 2], 3, {("a", "propagating"): [0, 0], ("a", "effective"): [1, 2]})
    assert [line.term for line in found.lines] == ["effective"]
    assert found.line("a").verdict == "grows"
    with pytest.raises(KeyError, match="no term `effective` of `b`; there are modules a"):
        found.line("b")


def loaded():
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        import coordinates
    finally:
        sys.path.pop(0)
    return coordinates


@pytest.fixture(scope="module")
def checks():
    """Both parametrisations of the example."""
    example = loaded()
    return {
        make.__name__: sonde.coord_check(make, widths=example.WIDTHS, seeds=2)
        for make in (example.standard, example.mup)
    }


def test_standard_and_mup_get_opposite_verdicts_where_theory_says_so(checks):
    """The input layer has inputs of a fixed number in both; the others sum over the width."""
    standard, mup = checks["standard"], checks["mup"]
    assert standard.line("embed").verdict == mup.line("embed").verdict == "stable"
    for layer in ("hidden", "readout"):
        assert standard.line(layer).verdict == "grows"
        assert standard.line(layer).slope == pytest.approx(1, abs=0.4)
        assert mup.line(layer).verdict == "stable"
    assert not standard.is_stable
    assert mup.is_stable


def test_it_prints_as_a_table(checks):
    text = str(checks["standard"])
    assert "hidden   (W_t - W_0) x_t" in text
    assert text.endswith("After 3 updates, what updates do is not the same at every width.")
    assert str(checks["mup"]).endswith("what updates do is the same at every width.")


def test_it_is_drawn(checks, tmp_path):
    pytest.importorskip("matplotlib")
    from sonde.coordinates import matplotlib

    matplotlib.plot(checks, tmp_path / "both.png")
    matplotlib.plot(checks["mup"], tmp_path / "one.svg")
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert "hidden" in (tmp_path / "one.svg").read_text()
    with pytest.raises(sonde.SondeError, match="Cannot write"):
        matplotlib.plot(checks, tmp_path / "both.nonsense")


def small(width):
    network = nn.Sequential(nn.Conv1d(2, width, 1), nn.Flatten(), nn.Linear(3 * width, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x = torch.ones(4, 2, 3)
    return network, optimizer, lambda m, step: (m(x) - step).square().mean()


def test_runs_are_kept_and_can_be_looked_at(tmp_path):
    found = sonde.coord_check(small, widths=(4, 2, 8), steps=1, dir=tmp_path, name="check")
    assert found.widths == (2, 4, 8)
    assert {line.module for line in found.lines} == {"0", "2"}
    names = sorted(p.name for p in tmp_path.iterdir() if p.is_dir())
    assert [n for n in names if n.startswith("check")] == ["check-2-0", "check-4-0", "check-8-0"]
    with sonde.open(tmp_path / "check-4-0") as run:
        rows = run.metrics("rcc/effective", module="0", frame="arrow").to_pylist()
        assert [r["step"] for r in rows] == [0, 1]
        assert found.line("0").values[1] == pytest.approx(
            rows[1]["value"] / 2
        )  # root of 4 channels
        assert run.scalars("loss", frame="arrow").num_rows == 2


def test_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def make(width):\n"
        "    model = nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))\n"
        "    x = torch.ones(4, 2)\n"
        "    optimizer = torch.optim.Adam(model.parameters())\n"
        "    return model, optimizer, lambda m, s: m(x).square().mean()\n"
    )
    code = main(
        [
            "coord-check",
            "own.py:make",
            "--widths",
            "8,16",
            "--steps",
            "1",
            "--json",
            "--plot",
            "p.png",
        ]
    )
    found = json.loads(capsys.readouterr().out)
    assert found["widths"] == [8, 16]
    assert code == (0 if found["is_stable"] else 1)
    assert {line["module"] for line in found["lines"]} == {"0", "1"}
    assert (tmp_path / "p.png").exists()
    assert main(["coord-check", "own.py:make", "--widths", "8,16", "--steps", "1"]) == code
    assert "slope" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py:make"], "Cannot load `nowhere.py:make`"),
        (["no_such_package:make"], "Cannot load"),
        (["make"], "Name a function as FILE.py:FUNCTION"),
        (["os:getcwd", "--widths", "8,x"], "must be numbers such as"),
        (["os:getcwd", "--widths", "8"], "must be two widths or more"),
        (["builtins:str"], "a model, its optimizer and a function"),
        (["builtins:str", "--steps", "0"], "must be at least 1"),
    ],
)
def test_mistakes(arguments, says, capsys):
    assert main(["coord-check", *arguments]) == 2
    assert says in capsys.readouterr().err
