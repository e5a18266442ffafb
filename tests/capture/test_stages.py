"""Stages of a gradient: what it was before clipping counts only where it is asked for."""

import json
import math

import pytest
import torch
from torch import nn

import sonde
from sonde.cli import main
from sonde.views import ids
from sonde.views.answers import ANSWERS
from sonde.views.questions import HeatQuestion, MoversQuestion, PanelQuestion, SectionQuestion
from sonde.views.runs.opened_run import OpenedRun


def train(watch_arguments, steps=3, clips=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    norms = []
    with sonde.watch(model, optimizer, every=1, **watch_arguments) as watch:
        for _ in range(steps):
            (10 * model(torch.ones(5, 4))).square().sum().backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
            for _ in range(clips - 1):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return watch.path, norms, sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def clipped(tmp_path_factory):
    return train({"dir": tmp_path_factory.mktemp("runs"), "name": "clipped"})


@pytest.fixture
def run(clipped):
    with sonde.open(clipped[0], frame="arrow") as opened:
        yield opened


def test_merged_gradients_are_those_that_the_optimizer_used(run, clipped):
    _, norms, n = clipped
    merged = run.merge(kind="param_grad", steps=2)
    assert merged.count == n
    assert merged.norm == pytest.approx(1.0, rel=1e-4)
    before = run.merge(kind="param_grad", steps=2, stage="before_clip")
    assert before.count == n
    assert before.norm == pytest.approx(norms[2], rel=1e-4)
    assert run.merge(kind="param_grad", steps=2, stage=None).count == 2 * n
    assert run.merge("0.*", kind="param_grad", steps=2).count == 40
    assert run.merge("0.*", kind="param_grad", steps=2, stage="before_clip").count == 40


@pytest.mark.parametrize("stat", ["norm", "p50"])
@pytest.mark.parametrize("pattern", ["*", "0.*", "0.weight*", "0", "re:0.*"])
def test_statistics_have_one_row_per_parameter_and_step(run, pattern, stat):
    found = run.stats(pattern, kind="param_grad", stat=stat)
    assert not any("before_clip" in name for name in found["name"].to_pylist())
    before = run.stats(pattern, kind="param_grad", stat=stat, stage="before_clip")
    assert before.num_rows == found.num_rows > 0
    assert all(name.endswith("/before_clip") for name in before["name"].to_pylist())
    both = run.stats(pattern, kind="param_grad", stat=stat, stage=None)
    assert both.num_rows == 2 * found.num_rows


def test_statistics_before_clipping_are_larger(run, clipped):
    _, norms, _ = clipped
    found = run.stats(kind="param_grad", stat="norm", steps=1, stage="before_clip")
    assert math.hypot(*found["norm"].to_pylist()) == pytest.approx(norms[1], rel=1e-4)
    assert set(run.stats(stage="before_clip")["kind"].to_pylist()) == {"param_grad"}


def test_one_sketch_is_found_by_parameter_and_stage(run):
    after = run.sketch("0.weight", kind="param_grad", step=0)
    before = run.sketch("0.weight", kind="param_grad", step=0, stage="before_clip")
    assert before.norm > 2 * after.norm
    assert run.histogram("0.weight", "param_grad", 0, stage="before_clip").counts.sum() == 32
    assert run.exponents("0.weight", "param_grad", 0, stage="before_clip").counts.sum() == 32
    named = run.sketch("0/param_grad/weight/before_clip", step=0)
    assert named.norm == before.norm
    exact = run.stats("0.weight/before_clip", stat="norm", steps=0)
    assert exact["norm"].to_pylist() == [before.norm]


def test_an_unknown_stage_names_those_that_exist(run):
    for ask in (run.stats, run.merge):
        with pytest.raises(sonde.SondeError, match="`final`, `before_clip`"):
            ask(stage="unscaled")
    with pytest.raises(sonde.SondeError, match="`final`, `before_clip`"):
        run.sketch("0.weight", "param_grad", stage="after")


def test_sql_has_the_last_stage_in_stats_and_all_of_them_in_stages(run, clipped):
    _, norms, n = clipped
    total = "select sqrt(sum(sum_sq)) as norm, sum(count) as n from {} where step = 0 and {}"
    found = run.sql(total.format("stats", "kind = 'param_grad'")).to_pylist()[0]
    assert (found["norm"], found["n"]) == (pytest.approx(1.0, rel=1e-4), n)
    found = run.sql(total.format("stages", "stage = 'before_clip'")).to_pylist()[0]
    assert (found["norm"], found["n"]) == (pytest.approx(norms[0], rel=1e-4), n)
    counted = run.sql("select sum(count) as n from bins where step = 0 and kind = 'param_grad'")
    assert counted["n"].to_pylist() == [n]
    listed = run.sql("select stage, count(*) as n from sites where kind = 'param_grad' group by 1")
    assert {row["stage"]: row["n"] for row in listed.to_pylist()} == {"final": 4, "before_clip": 4}


def test_show_counts_each_parameter_once(clipped, capsys):
    assert main(["show", str(clipped[0]), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    kinds = {kind["kind"]: kind["sites"] for kind in shown["kinds"]}
    assert kinds["param_grad"] == kinds["param"] == 4
    assert not any("before_clip" in site["name"] for site in shown["sites"])


def test_the_page_shows_each_parameter_once(run):
    subject = OpenedRun(run, "x")
    heat = ANSWERS["heat"](subject, HeatQuestion(run="x", kind="param_grad"))
    assert len(heat.rows) == 4
    moved = ANSWERS["movers"](subject, MoversQuestion(run="x", kind="param_grad", stat="rms"))
    assert moved.sites == 4
    panel = ANSWERS["panel"](subject, PanelQuestion(run="x", module=ids.of_name("0")))
    (section,) = (s for s in panel.sections if s.kind == "param_grad")
    assert [site.label for site in section.sites] == ["weight", "bias"]


def test_the_page_shows_a_gradient_before_clipping_by_its_address(run):
    site = ids.of_name("0/param_grad/weight/before_clip")
    found = ANSWERS["section"](OpenedRun(run, "x"), SectionQuestion(run="x", site=site, step=0))
    assert found.site.label == "weight/before_clip"


def test_a_second_clipping_in_a_step_is_no_second_gradient(tmp_path):
    path, norms, n = train({"dir": tmp_path, "name": "twice"}, steps=1, clips=3)
    with sonde.open(path) as run:
        before = run.merge(kind="param_grad", stage="before_clip")
        assert before.count == n
        assert before.norm == pytest.approx(norms[0], rel=1e-4)
