"""Runs that are empty, short, of several ranks, without a graph, damaged, or recorded for real."""

import json

import numpy as np
import pytest
import torch
from told import BLOCKS, OUTPUTS, Told, asked, infos, rms, write_step
from torch import nn

import sonde
from sonde.record import NumberBatch
from sonde.store import Writer, open_run
from sonde.views import envelope
from sonde.views.answers import ANSWERS
from sonde.views.runs.opened_run import NotFoundError, OpenedRun


def every_view(subject):
    """Each view asked with the least that it needs; what it says where there is nothing."""
    header = asked(subject, "run")
    needs = {
        "panel": {"module": "."},
        "search": {"q": "x"},
        "kymograph": {"site": "head/output/0"},
        "section": {"site": "head/output/0"},
        "variable": {"site": "head/output/0"},
    }
    found = {}
    for view in ANSWERS:
        try:
            found[view] = asked(subject, view, **needs.get(view, {}))
            kind, data = envelope.pack(view, found[view], subject.state())
            assert envelope.unpack(data)["view"] == view, kind
        except NotFoundError as error:
            found[view] = error.code
    return header, found


def test_a_run_without_anything_answers(tmp_path):
    with Writer(tmp_path / "empty", compact=False):
        pass
    subject = Told(tmp_path / "empty").subject()
    header, found = every_view(subject)
    assert (header.recorded_steps, header.kinds, header.scalars) == (0, (), ())
    assert (header.kind, header.timeline, header.last_step) == (None, None, None)
    assert found["heat"] == found["tint"] == "not_recorded"
    assert found["kymograph"] == found["section"] == found["variable"] == "no_such_site"
    assert found["lines"].lines == ()
    assert found["spark"].name is None
    assert found["movers"].rows == ()
    assert [n.path for n in found["tree"].nodes] == [""]
    assert found["level"].nodes == () or not found["level"].edges


def test_a_run_of_numbers_alone_has_lines(tmp_path):
    with Writer(tmp_path / "numbers", compact=False) as writer:
        for step in range(3):
            writer.numbers(NumberBatch(step, "train", ["x"], [None], np.array([step * 1.5])))
    subject = Told(tmp_path / "numbers").subject()
    header, found = every_view(subject)
    assert header.timeline == "x"
    assert found["lines"].last.tolist() == [0.0, 1.5, 3.0]


def test_one_step_is_enough(tmp_path):
    told = Told(tmp_path / "one")
    with Writer(told.path, compact=False) as writer:
        writer.sites(infos())
        write_step(told, writer, 7)
    subject = told.subject()
    header, found = every_view(subject)
    assert (header.first_step, header.last_step, header.recorded_steps) == (7, 7, 1)
    heat = asked(subject, "heat", kind="output")
    np.testing.assert_allclose(
        heat.values[:, 0], [rms(told.seen(row.site, 7)) for row in heat.rows], rtol=1e-6
    )
    assert found["kymograph"].columns.first.tolist() == [7]
    assert found["section"].previous is found["section"].next is None


def test_without_a_graph_the_modules_are_boxes_without_arrows(tmp_path):
    told = Told(tmp_path / "flat")
    with Writer(told.path, compact=False) as writer:
        writer.sites(infos())
        write_step(told, writer, 0)
    subject = told.subject()
    level = asked(subject, "level")
    assert not level.has_flow
    assert level.edges == ()
    assert "was not recorded" in level.note
    assert {n.id for n in level.nodes} >= {"embed", "head"}
    assert asked(subject, "tint", kind="output").step == 0


def test_ranks_are_merged_and_can_be_told_apart(ranks):
    subject = ranks.subject()
    assert asked(subject, "run").ranks == (0, 1, 2)
    merged = asked(subject, "heat", kind="output")
    for i in (0, 5):
        name = OUTPUTS[i].name
        known = [rms(ranks.seen(name, s)) for s in range(12)]
        np.testing.assert_allclose(merged.values[i], known, rtol=1e-6)
    for rank in range(3):
        one = asked(subject, "heat", kind="output", rank=rank)
        known = [rms(ranks.values["head/output/0", s, "train"][rank]) for s in range(12)]
        at = [row.path for row in one.rows].index("head")
        np.testing.assert_allclose(one.values[at], known, rtol=1e-6)
        lines = asked(subject, "lines", name="loss", rank=rank, phase="train")
        np.testing.assert_allclose(lines.last, [10 / (1 + s) + rank for s in range(12)])
        metric = asked(subject, "heat", metric="norm", rank=rank)
        np.testing.assert_allclose(metric.values[1], -np.arange(12.0))
    assert asked(subject, "lines", name="loss", phase="train").last[0] == 10.0, "rank 0 counts"
    site = "head/output/0"
    both = asked(subject, "kymograph", site=site)
    assert both.total.tolist() == [120.0] * 12
    one = asked(subject, "section", site=site, rank=2, step=3)
    assert one.total == 40
    quantile = asked(subject, "heat", kind="output", stat="p90").values[at, 3]
    assert quantile == np.float32(subject.run.sketch(site, step=3).quantiles([0.9])[0])
    with pytest.raises(NotFoundError):
        asked(subject, "section", site=site, rank=7)
    subject.run.close()


def test_many_rows_of_many_ranks_are_merged_a_part_at_a_time(ranks, monkeypatch):
    from sonde.views.numbers import pooling

    subject = ranks.subject()
    whole = asked(subject, "heat", kind="output", columns=8)
    monkeypatch.setattr(pooling, "_MERGED_AT_ONCE", 60)
    parts = asked(subject, "heat", kind="output", columns=8)
    np.testing.assert_array_equal(whole.values, parts.values)
    np.testing.assert_array_equal(whole.flags, parts.flags)
    subject.run.close()


def test_a_damaged_segment_is_a_notice_and_the_rest_is_shown(tmp_path):
    told = Told(tmp_path / "damaged")
    with Writer(told.path, compact=False, flush_s=60) as writer:
        writer.sites(infos())
        for step in range(4):
            write_step(told, writer, step)
            assert writer.flush(30)
    segments = sorted((told.path / "live").rglob("*.parquet"))
    data = segments[1].read_bytes()
    segments[1].write_bytes(data[: len(data) // 2])
    subject = OpenedRun(open_run(told.path, frame="arrow"), "id")
    with pytest.warns(sonde.SondeWarning, match="cannot be read"):
        header = asked(subject, "run")
    (notice,) = [n for n in header.notices if n.code == "damaged"]
    assert notice.level == "error"
    assert asked(subject, "heat", kind="output").columns.first.tolist() == [0, 2, 3]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        hidden = sonde.attach(torch.relu(self.a(x)), "hidden")
        return self.b(hidden)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A real training of a model with an attached tensor, and what the tensor held."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    folder = tmp_path_factory.mktemp("recorded")
    with sonde.watch(model, optimizer, every=1, log="all", dir=folder, name="run") as watch:
        for _ in range(5):
            x = torch.randn(3, 4)
            hidden = torch.relu(model.a.weight @ x.T + model.a.bias[:, None]).detach().T
            loss = model(x).square().mean()
            loss.backward()
            grad = torch.autograd.grad(
                model.b(h := hidden.clone().requires_grad_()).square().mean(), h
            )[0]
            seen.append((hidden.numpy().astype(float), grad.numpy().astype(float)))
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)
    subject = Told(watch.path).subject()
    yield subject, seen
    subject.run.close()


def test_an_attached_tensor_is_a_box_between_its_neighbours(recorded):
    subject, _ = recorded
    level = asked(subject, "level")
    (box,) = [n for n in level.nodes if n.kind == "attach"]
    assert (box.label, box.kinds) == ("hidden", ("attach", "attach_grad"))
    assert box.outputs[0].shape == (3, 6)
    edges = {(e.source, e.target) for e in level.edges}
    assert {("a", box.id), (box.id, "b")} <= edges


def test_an_attached_tensor_has_panels_of_its_value_and_its_gradient(recorded):
    subject, seen = recorded
    (box,) = [n for n in asked(subject, "level").nodes if n.kind == "attach"]
    panel = asked(subject, "panel", node=box.node)
    assert [(s.kind, s.title) for s in panel.sections] == [
        ("attach", "Attached tensors"),
        ("attach_grad", "Gradients of attached tensors"),
    ]
    assert panel.missing == ()
    for i, section in enumerate(panel.sections):
        (site,) = section.sites
        found = asked(subject, "kymograph", site=site.id, scale="linear", range="all")
        for step, pair in enumerate(seen):
            x = pair[i]
            assert found.total[step] == x.size
            assert found.zeros[step] == (x == 0).sum()
            assert found.high[step] == pytest.approx(x.max(), rel=1e-5)
            assert found.rms[step] == pytest.approx(np.sqrt((x**2).mean()), rel=1e-5)
            known = subject.run.histogram(site.name, step=step, edges=found.edges)
            np.testing.assert_allclose(found.counts[step], known.counts, rtol=1e-6)


def test_an_attached_tensor_is_tinted_by_value_and_by_gradient(recorded):
    subject, seen = recorded
    for kind, i in (("attach", 0), ("attach_grad", 1), ("output_grad", 1), ("output", 0)):
        tint = asked(subject, "tint", kind=kind, stat="rms", step=3)
        (box,) = [n for n in tint.nodes if "/attach/" in n.id]
        assert box.value == pytest.approx(np.sqrt((seen[3][i] ** 2).mean()), rel=1e-5), kind


def test_answers_about_a_real_run_are_those_of_the_run(recorded):
    subject, _ = recorded
    run = subject.run
    for kind in ("output", "input", "param", "param_grad", "update", "output_grad"):
        heat = asked(subject, "heat", kind=kind, stat="rms")
        rows = run.stats(kind=kind, stat="rms", frame="arrow").to_pylist()
        known = {(r["name"], r["step"]): r["rms"] for r in rows}
        for i, row in enumerate(heat.rows):
            for j, step in enumerate(heat.columns.first.astype(int)):
                value = known[row.site, step]
                assert heat.values[i, j] == np.float32(value), (row.site, step)


def test_every_answer_can_be_sent(subject, recorded):
    for one in (subject, recorded[0]):
        for view in ANSWERS:
            question = {
                "panel": {"module": "."},
                "search": {"q": "h"},
                "kymograph": {"site": "./output/0"},
                "section": {"site": "./output/0"},
                "variable": {"site": "./output/0"},
            }.get(view, {})
            _, data = envelope.pack(view, asked(one, view, **question), one.state())
            head = data[8:] if data[:4] == envelope.MAGIC else data
            assert b"NaN" not in head[: int.from_bytes(data[4:8], "little")]
            json.dumps(envelope.unpack(data), default=lambda a: a.tolist())


def test_blocks_fold_whatever_their_number(subject):
    assert asked(subject, "level").nodes[2].count == BLOCKS
