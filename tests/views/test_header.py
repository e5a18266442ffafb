"""The header of a run and the movers: what there is, and where to look first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from told import ALL_NAN, GRADS, MODULES, OUTPUTS, SOME_INF, SOME_NAN, STEPS, asked, rms

from sonde._errors import SondeError
from sonde.kernels.reference import sketch
from sonde.record import Site, SiteInfo, SketchBatch
from sonde.sketch import concatenate
from sonde.store import Writer, open_run
from sonde.views.header import step_ranges
from sonde.views.runs.opened_run import OpenedRun


def test_the_header_says_what_there_is(told, subject):
    header = asked(subject, "run")
    assert (header.status, header.first_step, header.last_step) == ("finished", 0, STEPS[-1])
    assert header.recorded_steps == len(STEPS)
    assert {k.kind: k.sites for k in header.kinds} == {
        "output": len(OUTPUTS),
        "param_grad": len(GRADS),
    }
    assert header.phases == ("train", "eval")
    assert header.ranks == (0,)
    scalars = {(n.name, n.phases): n.numbers for n in header.scalars}
    evals = sum(s % 10 == 9 for s in STEPS)
    assert scalars == {
        ("loss", ("eval", "train")): len(STEPS) + evals,
        ("lr", ("train",)): len(STEPS),
    }
    assert [(n.name, n.modules) for n in header.metrics] == [("norm", 2)]
    assert (header.timeline, header.kind, header.graph) == ("loss", "param_grad", True)
    assert header.modules == len(MODULES) + 1  # `h` holds the blocks
    assert header.records == len(STEPS) * len(told_sites()) + evals * len(told_sites())


def told_sites():
    return [*OUTPUTS, *GRADS]


def test_movers_are_what_is_not_finite_then_what_changed_most(told, subject):
    movers = asked(subject, "movers", kind="output", limit=500)
    bad = [(m.site.name, m.first_nonfinite_step, m.nonfinite_steps) for m in movers.rows[:3]]
    assert bad == [(SOME_NAN, 12, 3), (SOME_INF, 17, 1), (ALL_NAN, 21, 1)]
    assert movers.nonfinite_sites == 3
    assert movers.sites == len(OUTPUTS)
    quarter = (STEPS[-1] - STEPS[0]) // 4
    changes = [abs(m.change) for m in movers.rows[3:]]
    assert changes == sorted(changes, reverse=True)
    for m in movers.rows:
        before, after = (
            np.nanmedian([rms(told.seen(m.site.name, s)) for s in some])
            for some in (
                [s for s in STEPS if s <= quarter],
                [s for s in STEPS if s >= STEPS[-1] - quarter],
            )
        )
        assert m.before == pytest.approx(before)
        assert m.after == pytest.approx(after)
        assert m.change == pytest.approx(np.log2(after / before))


def test_movers_of_a_window_and_a_limit(subject):
    movers = asked(subject, "movers", kind="output", first=0, last=11)
    assert movers.nonfinite_sites == 0
    assert (movers.first_step, movers.last_step) == (0, 11)
    assert len(asked(subject, "movers", limit=2).rows) == 2
    nothing = asked(subject, "movers", kind="update")
    assert (nothing.rows, nothing.first_step) == ((), None)
    with pytest.raises(SondeError, match="needs bins"):
        asked(subject, "movers", stat="p99")


def test_what_moves_below_the_smallest_normal_number_is_no_mover(tmp_path):
    """A gradient that is noise of 1e-42 is no news, however often it is a hundred times itself."""
    sites = [Site("noise", "output"), Site("steady", "output"), Site("awake", "output")]
    with Writer(tmp_path / "run", compact=False) as writer:
        writer.sites([SiteInfo(i, s, "float32", (4,), "Linear") for i, s in enumerate(sites)])
        for step in range(8):
            sizes = (1e-44 * 3.0**step, 1.0 + step / 8, 1e-41 if step < 4 else 1e-3)
            made = concatenate([sketch(size * np.ones(4)).columns() for size in sizes])
            writer.sketches(SketchBatch(step, "train", np.arange(3, dtype=np.int32), made))
    found = asked(OpenedRun(open_run(tmp_path / "run", frame="arrow"), "id"), "movers", stat="rms")
    assert [row.site.module for row in found.rows] == ["awake", "steady", "noise"]
    assert found.rows[-1].change == 0
    assert found.rows[0].change == pytest.approx(np.log2(1e-3 / 2.0**-126), rel=1e-6)


def test_recorded_steps_are_told_as_ranges(subject):
    found = asked(subject, "run").recorded
    steps = [step for r in found for step in range(r.first, r.last + 1, r.every)]
    assert steps == STEPS
    assert len(found) == 2


@given(st.lists(st.integers(0, 200), unique=True).map(sorted))
def test_ranges_of_steps_hold_each_step_once(steps):
    found = step_ranges(np.array(steps, np.int64))
    assert [s for r in found for s in range(r.first, r.last + 1, r.every)] == steps


def test_ranks_that_differ_or_never_came_are_noticed(tmp_path):
    for rank in range(2):
        with Writer(tmp_path / "run", rank=rank, world_size=3) as writer:
            site = Site("fc", "param", 0, "weight")
            writer.sites([SiteInfo(0, site, "float32", (8,), "Linear", part=0, parts=1)])
            columns = concatenate([sketch(np.ones(8) + rank).columns()])
            writer.sketches(SketchBatch(0, "train", np.zeros(1, np.int32), columns))
    with open_run(tmp_path / "run", frame="arrow") as run:
        header = asked(OpenedRun(run, "run"), "run")
    found = {notice.code: notice for notice in header.notices}
    assert found["ranks"].message == "rank 2 recorded nothing"
    assert found["drift"].where == "fc/param/weight"
    assert found["drift"].step == 0
