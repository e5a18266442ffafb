"""The table of layers, clocks and notes: each number is what numpy says of the values behind it."""

import numpy as np
import pytest
from told import GRADS, OUTPUTS, SOME_INF, STEPS, ZEROS, asked, finite, rms

from sonde._errors import SondeError
from sonde.kernels.reference import sketch
from sonde.record import Event, NumberBatch, Site, SiteInfo, SketchBatch
from sonde.store import Writer, open_run
from sonde.views.runs.opened_run import NotFoundError, OpenedRun


def test_every_tensor_of_the_kind_has_a_row_at_the_step(told, subject):
    table = asked(subject, "table", kind="output", step=17)
    assert (table.kind, table.step) == ("output", 17)
    assert [r.site.name for r in table.rows] == [s.name for s in OUTPUTS]
    for row in table.rows:
        x = told.seen(row.site.name, 17)
        assert row.rms == pytest.approx(rms(x), rel=1e-6)
        assert row.max_abs == pytest.approx(np.abs(finite(x)).max())
        assert row.zeros == pytest.approx(np.mean(x == 0))


def test_the_table_tells_where_values_stopped_being_finite_and_what_a_format_loses(told, subject):
    table = asked(subject, "table", kind="output", step=17, format="float4_e2m1fn")
    rows = {r.site.name: r for r in table.rows}
    assert rows[SOME_INF].first_nonfinite_step == 17
    assert rows[ZEROS].first_nonfinite_step is None
    for name, row in rows.items():
        loss = sketch(told.seen(name, 17)).loss("float4_e2m1fn")
        assert (row.underflow, row.overflow) == (loss.underflow, loss.overflow)


def test_the_step_of_the_table_is_the_recorded_one_at_or_before(subject):
    assert asked(subject, "table", step=31).step == 30
    assert asked(subject, "table").step == STEPS[-1]
    table = asked(subject, "table", kind="param_grad", under="h.1")
    assert {r.site.module for r in table.rows} == {"h.1.mlp"}
    assert len(asked(subject, "table", kind="param_grad").rows) == len(GRADS)
    with pytest.raises(NotFoundError, match="Nothing was recorded"):
        asked(subject, "table", phase="test")
    with pytest.raises(SondeError, match="Unknown number format"):
        asked(subject, "table", format="float5")


@pytest.mark.parametrize("short", ["e4m3", "e5m2", "fp16"])
def test_underflow_of_the_whole_model_is_that_of_each_sketch(told, subject, short):
    heat = asked(subject, "heat", kind="output", stat=f"underflow_{short}")
    assert heat.format == "share"
    names = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "fp16": "float16"}
    for i, site in enumerate(OUTPUTS):
        for j, step in enumerate(STEPS):
            known = sketch(told.seen(site.name, step)).loss(names[short]).underflow
            assert np.float32(known) == pytest.approx(heat.values[i, j], nan_ok=True)


@pytest.fixture(scope="module")
def clocked(tmp_path_factory):
    """A run with epochs, tokens that are counted again after step 6, and two notes."""
    path = tmp_path_factory.mktemp("clocks") / "run"
    with Writer(path, compact=False) as writer:
        writer.sites([SiteInfo(0, Site("a", "output"), "float32", (4,), "Linear")])
        for step in range(0, 20, 2):
            rows = sketch(np.ones(4)).columns()
            writer.sketches(SketchBatch(step, "train", np.zeros(1, np.int32), rows))
            tokens = 1000.0 * step if step <= 6 else 1000.0 * (step - 3)
            values = np.array([step / 10, tokens])
            writer.numbers(NumberBatch(step, "train", ["epoch", "tokens"], [None] * 2, values))
        writer.event(Event("note", "warmup ends", step=4))
        writer.event(Event("note", "lr halved", step=12))
    subject = OpenedRun(open_run(path, frame="arrow"), "id")
    yield subject
    subject.run.close()


def test_a_scalar_is_a_clock(clocked):
    clock = asked(clocked, "clock", name="epoch")
    assert clock.steps.tolist() == list(range(0, 20, 2))
    assert clock.values == pytest.approx(np.arange(0, 2, 0.2))


def test_a_clock_never_goes_back(clocked):
    values = asked(clocked, "clock", name="tokens").values
    assert (np.diff(values) >= 0).all()
    assert values[4] == values[3] == 6000


def test_time_begins_with_the_first_record(clocked):
    clock = asked(clocked, "clock")
    assert clock.values[0] == 0
    assert (np.diff(clock.values) >= 0).all()
    with pytest.raises(NotFoundError, match="No scalar `flops`"):
        asked(clocked, "clock", name="flops")


def test_notes_stand_at_their_steps(clocked):
    notes = asked(clocked, "run").step_notes
    assert [(n.step, n.text) for n in notes] == [(4, "warmup ends"), (12, "lr halved")]
