"""Looking at what was traced: on the command line, and as sites of kind `local` in every view."""

import inspect
import json

import numpy as np
import pytest
import torch
from torch import nn

import sonde
from sonde.cli import main
from sonde.store import open_run
from sonde.views.answers import ANSWERS
from sonde.views.questions import parse
from sonde.views.routes import ROUTES
from sonde.views.runs.opened_run import OpenedRun


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x, calls=0):
        q, k, v = self.qkv(x).chunk(3, -1)
        mode = "\x1b[31mred"  # noqa: F841  # is traced
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        broken = weights / 0  # noqa: F841
        return weights @ v


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


STEPS = 5


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    paths = ["layers.*.forward.*", "layers.*.forward", "forward.x", "layers.0.forward.q@grad"]
    with (
        sonde.watch(model, optimizer, dir=folder, name="run", every=1),
        sonde.trace(model, paths),
    ):
        for _ in range(STEPS):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder / "run"


def run_cli(capsys, *arguments):
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_show_prints_the_source_with_the_latest_statistics_on_each_line(traced, capsys):
    code, out, _ = run_cli(capsys, "trace", "show", traced, "layers.0.forward")
    assert code == 0
    text, first = inspect.getsourcelines(Attention.forward)
    lines = {int(line[:5]): line for line in out.splitlines() if line[:5].strip().isdigit()}
    assert list(lines) == list(range(first, first + len(text)))
    with sonde.open(traced) as run:
        last = run.trace("layers.0.forward.weights", steps=STEPS - 1).values[0]
    (weights,) = [line for line in lines.values() if "weights = " in line]
    assert "weights float32 3×3" in weights
    assert f"{last.mean():.3g} ± {last.std():.3g}" in weights
    (broken,) = [line for line in lines.values() if "broken = " in line]
    assert "9 not finite" in broken
    assert "return float32 3×4" in lines[first + len(text) - 1]
    assert " x float32 3×4" in out
    assert "'\\x1b[31mred'" in out
    assert "\x1b[31mred" not in out
    for variable in ("q ", "k ", "v ", "q@grad "):
        assert f" {variable}float32 3×4" in out
    assert out.startswith(f"layers.0.forward  up to step {STEPS - 1}")


def test_show_takes_patterns_steps_and_gives_json(traced, capsys):
    _, out, _ = run_cli(capsys, "trace", "show", traced)
    assert [line.split()[0] for line in out.splitlines() if "up to step" in line] == [
        *("layers.0.forward", "layers.1.forward", "forward"),
    ]
    code, out, _ = run_cli(capsys, "trace", "show", traced, "forward", "--step", 2, "--json")
    assert code == 0
    (method,) = json.loads(out)
    found = {a["step"] for line in method["lines"] for a in line["assigned"]}
    assert found == {2}
    by_line = {line["number"]: line["assigned"] for line in method["lines"]}
    first = Net.forward.__code__.co_firstlineno
    with sonde.open(traced) as run:
        x = run.trace("forward.x", steps=2)
    # Once as the argument, and once in the loop, where each round gives it another value.
    assert by_line[first][0]["mean"] == pytest.approx(float(x.values[0].mean()), rel=1e-5)
    assert by_line[first + 2][0]["mean"] == pytest.approx(float(x.values[-1].mean()), rel=1e-5)
    assert len(x) == 3


def test_a_method_that_was_not_traced_and_a_run_without_a_trace_are_said(traced, capsys, tmp_path):
    code, _, err = run_cli(capsys, "trace", "show", traced, "layers.9.forward")
    assert code == 2
    assert "is no traced method" in err
    assert "`layers.0.forward`" in err
    model = nn.Linear(2, 2)
    with sonde.watch(model, dir=tmp_path, name="plain", every=1) as watch:
        model(torch.ones(1, 2))
        watch.step()
    code, _, err = run_cli(capsys, "trace", "show", tmp_path / "plain")
    assert code == 2
    assert "No method was traced" in err
    code, out, _ = run_cli(capsys, "trace", "ls", tmp_path / "plain")
    assert code == 0
    assert "Nothing was traced" in out


def test_ls_lists_variables(traced, capsys):
    _, out, _ = run_cli(capsys, "trace", "ls", traced, "--json")
    found = {row["name"]: row for row in json.loads(out)}
    assert found["layers.1.forward.weights"]["values"] == STEPS
    assert found["layers.1.forward.mode"]["values"] == 1
    assert found["forward.x"]["shape"] == [3, 4]
    code, out, _ = run_cli(capsys, "trace", "ls", traced)
    assert code == 0
    assert any(line.split()[:2] == ["forward.x", str(3 * STEPS)] for line in out.splitlines())


# -- views --------------------------------------------------------------------------------------


SITE = "layers.0/local/forward.weights"


def asked(subject, view, **question):
    pairs = [("run", subject.id), *((name, str(value)) for name, value in question.items())]
    return ANSWERS[view](subject, parse(ROUTES[view].question, pairs))


@pytest.fixture
def subject(traced):
    with open_run(traced, frame="arrow") as run:
        yield OpenedRun(run, "id")


def test_every_view_serves_variables_as_sites(subject):
    values = subject.run.trace("layers.0.forward.weights").values
    kymograph = asked(subject, "kymograph", site=SITE)
    assert kymograph.columns.first.tolist() == list(range(STEPS))
    assert kymograph.counts.sum(axis=1).tolist() == [9.0] * STEPS
    section = asked(subject, "section", site=SITE, step=3)
    assert section.step == 3
    statistics = {each.name: each.value for each in section.statistics}
    assert statistics["mean"] == pytest.approx(float(values[3].mean()), rel=1e-5)
    panel = asked(subject, "panel", module="layers.0")
    (kind,) = [s for s in panel.sections if s.kind == "local"]
    assert SITE in [site.name for site in kind.sites]
    heat = asked(subject, "heat", kind="local", stat="mean")
    (row,) = [n for n, r in enumerate(heat.rows) if "weights" in str(r) and "layers.0" in str(r)]
    expected = [float(v.mean()) for v in values]
    np.testing.assert_allclose(heat.values[row], expected, rtol=1e-5)
