"""Views of two runs: rows are matched, numbers are those of each run, differences are numpy's."""

import json
from dataclasses import replace

import numpy as np
import pytest
import told as told_
from told import GRADS, MODULES, OUTPUTS, SITES, asked

from sonde._errors import SondeError
from sonde.kernels.reference import sketch
from sonde.record import Site, SketchBatch
from sonde.sketch import concatenate
from sonde.store import Writer, open_run
from sonde.views import envelope, specs
from sonde.views.answers import ANSWERS_OF_SEVERAL
from sonde.views.questions import QuestionError, parse
from sonde.views.routes import ROUTES
from sonde.views.runs.opened_run import NotFoundError, OpenedRun
from sonde.views.runs.several import SeveralRuns

FACTOR = 4.0
CHANGED = "h.1.mlp"
FROM_STEP = 8


def written(path, *, steps=range(12), rename=None, leave_out=(), change=1.0, config=None):
    """The run of the other tests of views; from a step on one module is larger by a factor."""
    sites = [s for s in SITES if s.module not in leave_out]
    named = [replace(s, module=(rename or {}).get(s.module, s.module)) for s in sites]
    types = {(rename or {}).get(path, path): kind for path, kind in MODULES.items()}
    infos = [
        replace(info, module_type=types.get(info.site.module, "Linear"))
        for info in told_.infos(named)
    ]
    with Writer(path, compact=False, config=config or {}) as writer:
        writer.sites(infos)
        for step in steps:
            made = []
            for site in sites:
                is_changed = site.module == CHANGED and site.kind == "output" and step >= FROM_STEP
                x = told_.tensor(site.name, step) * (change if is_changed else 1.0)
                made.append(sketch(x).columns())
            ids = np.arange(len(sites), dtype=np.int32)
            writer.sketches(SketchBatch(step, "train", ids, concatenate(made)))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by name: a plain one, its twin, and some that differ from it."""
    folder = tmp_path_factory.mktemp("pairs")
    written(folder / "a", config={"user": {"lr": 0.1, "seed": 0}})
    written(folder / "twin", config={"user": {"lr": 0.1, "seed": 0}})
    written(folder / "larger", change=FACTOR, config={"user": {"lr": 0.2, "seed": 0}})
    written(folder / "renamed", rename={"head": "lm_head"})
    written(folder / "smaller", leave_out={"embed"}, steps=range(0, 12, 3))
    opened = {p.name: OpenedRun(open_run(p, frame="arrow"), p.name) for p in folder.iterdir()}
    yield opened
    for one in opened.values():
        one.run.close()


def ask(runs, view, other, **question):
    pairs = [("run", "a"), ("other", other)]
    for name, value in question.items():
        several = value if isinstance(value, list) else [value]
        pairs += [(name, str(one)) for one in several]
    return ANSWERS_OF_SEVERAL[view](SeveralRuns(runs.get), parse(ROUTES[view].question, pairs))


def test_twins_have_no_difference(runs):
    found = ask(runs, "compare", "twin")
    assert (found.verdict, found.first, found.farthest) == ("identical", None, ())
    assert "no difference" in found.headline
    assert found.settings == ()
    assert (found.sites, found.steps) == (len(SITES), 12)


def test_the_first_difference_and_settings_are_told(runs):
    found = ask(runs, "compare", "larger")
    assert found.verdict == "different"
    assert (found.first.step, found.first.site.name) == (FROM_STEP, f"{CHANGED}/output/0")
    assert found.settings == (specs.TwoValues("lr", "0.1", "0.2"),)
    worst = found.farthest[0]
    assert worst.site.name == f"{CHANGED}/output/0"
    assert worst.shift == pytest.approx(2.0, abs=0.05)


def test_what_only_one_run_has_is_listed_and_what_was_renamed_is_matched(runs):
    found = ask(runs, "compare", "smaller")
    assert found.removed == ("embed/output/0",)
    assert (found.added_count, found.steps) == (0, 4)
    found = ask(runs, "compare", "renamed")
    assert found.renamed == (specs.TwoValues("", "head", "lm_head"),)
    assert (found.removed_count, found.added_count) == (0, 0)


def test_heatmaps_of_two_runs_have_the_same_rows_and_the_numbers_of_each(runs):
    found = ask(runs, "paired_heat", "larger", kind="output")
    for side, name in ((found.a, "a"), (found.b, "larger")):
        alone = asked(runs[name], "heat", kind="output")
        assert [r.path for r in side.rows] == [r.path for r in alone.rows]
        assert np.array_equal(side.values, alone.values, equal_nan=True)
        assert np.array_equal(side.flags, alone.flags)
        assert side.columns.first.tolist() == list(range(12))
    assert found.a.limits == found.b.limits
    ratio = found.difference
    row = [r.path for r in ratio.rows].index(CHANGED)
    good = ratio.flags == specs.NUMBER
    expected = np.zeros_like(ratio.values)
    expected[row, FROM_STEP:] = -np.log2(FACTOR)
    assert np.allclose(ratio.values[good], expected[good], atol=1e-5)
    assert ratio.is_signed
    assert ratio.limits.low == -ratio.limits.high
    assert (ratio.flags == specs.NONFINITE).sum() == (found.a.flags == specs.NONFINITE).sum()


def test_steps_that_both_runs_have_are_compared(runs):
    found = ask(runs, "paired_heat", "smaller", kind="output")
    assert "embed" not in [r.path for r in found.a.rows]
    assert found.a.columns.first.tolist() == [0, 3, 6, 9]
    assert (found.difference.flags != specs.EMPTY).any(axis=0).all()
    assert "4 of 12 and 4 steps are in both runs" in found.difference.notes


def test_runs_recorded_at_other_steps_share_columns_of_several(runs, tmp_path):
    odd = OpenedRun(open_run(written(tmp_path / "odd", steps=range(1, 12, 2))), "odd")
    even = OpenedRun(open_run(written(tmp_path / "even", steps=range(0, 12, 2))), "a")
    found = ask({"a": even, "odd": odd}, "paired_heat", "odd", kind="output", aggregate="last")
    assert found.a.columns.stride == 2
    assert found.a.columns.first.tolist() == [0, 2, 4, 6, 8, 10]
    row = [r.path for r in found.a.rows].index("head")
    alone = asked(even, "heat", kind="output").values[row]
    assert np.array_equal(found.a.values[row], alone)
    assert (found.difference.flags[row] == specs.NUMBER).all()


def test_rows_of_renamed_modules_lead_to_their_match(runs):
    found = ask(runs, "paired_heat", "renamed", kind="param_grad")
    row = [r.path for r in found.a.rows].index("head")
    assert found.others[row] == "lm_head"
    assert not any(found.others[:row])
    assert np.allclose(found.difference.values[row], 0)


def test_shares_are_subtracted(runs):
    found = ask(runs, "paired_heat", "larger", kind="output", stat="sparsity")
    assert found.difference.label == "A − B"
    assert not found.difference.values[found.difference.flags == specs.NUMBER].any()


def test_distances_are_octaves_at_each_column(runs):
    found = ask(runs, "paired_heat", "larger", kind="output", measure="distance")
    heat = found.difference
    row = [r.path for r in heat.rows].index(CHANGED)
    assert heat.values[row, FROM_STEP:] == pytest.approx(np.full(12 - FROM_STEP, 2.0), abs=0.05)
    assert not np.nan_to_num(heat.values[row, :FROM_STEP]).any()
    assert not heat.is_signed


def test_columns_of_several_steps_are_pooled_alike_in_both(runs):
    found = ask(runs, "paired_heat", "larger", kind="output", columns=8)
    assert found.a.columns.stride == 2
    assert found.a.values.shape == found.b.values.shape == found.difference.values.shape
    assert found.a.values.shape[1] == 6


def test_quantiles_can_be_compared(runs):
    found = ask(runs, "paired_heat", "larger", kind="output", stat="p90")
    row = [r.path for r in found.a.rows].index(CHANGED)
    assert found.difference.values[row, -1] == pytest.approx(-2.0, abs=0.3)


def test_histograms_of_both_share_their_edges(runs):
    found = ask(runs, "paired_section", "larger", site=f"{CHANGED}/output/0", step=9)
    assert np.array_equal(found.a.edges, found.b.edges)
    assert (found.a.step, found.b.step) == (9, 9)
    for side in (found.a, found.b):
        assert side.counts.sum() + side.below + side.above == pytest.approx(side.total)
    assert found.shift == pytest.approx(2.0, abs=0.05)
    assert found.w1 == pytest.approx(2.0, abs=0.05)


def test_each_run_shows_its_own_last_step_before_the_cursor(runs):
    found = ask(runs, "paired_section", "smaller", site=f"{CHANGED}/output/0", step=5)
    assert (found.a.step, found.b.step) == (5, 3)


@pytest.mark.parametrize(
    ("view", "question", "error", "words"),
    [
        ("compare", {"name": "embed"}, QuestionError, "two paths"),
        ("compare", {"name": "nowhere=embed"}, SondeError, "no module `nowhere`"),
        ("compare", {"phase": "test"}, SondeError, "no sketch in phase"),
        ("paired_heat", {"kind": "update"}, NotFoundError, "no `update` in common"),
        ("paired_section", {"site": "embed/output/0"}, NotFoundError, "no match"),
    ],
)
def test_what_cannot_be_compared_is_named(runs, view, question, error, words):
    with pytest.raises(error, match=words):
        ask(runs, view, "smaller", **question)


def test_every_answer_about_two_runs_can_be_sent(runs):
    for view in ANSWERS_OF_SEVERAL:
        question = {"site": f"{CHANGED}/output/0"} if view == "paired_section" else {}
        _, data = envelope.pack(view, ask(runs, view, "larger", **question), runs["a"].state())
        json.dumps(envelope.unpack(data), default=lambda a: a.tolist())


def test_only_grads_of_linear_layers_are_there():
    """What the other tests build on."""
    assert {s.kind for s in SITES} == {"output", "param_grad"}
    assert len(OUTPUTS) + len(GRADS) == len(SITES)
    assert Site(CHANGED, "output") in OUTPUTS
