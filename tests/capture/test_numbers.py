"""Numbers for and from a loop: statistics for any logger, scalars logged twice, steps of one's own,
tensors from anywhere, weights at the end."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import sonde

fine = [True]
"""Whether a selector of a test works."""


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def step(model, optimizer, x=None):
    optimizer.zero_grad()
    loss = model(torch.ones(5, 4) if x is None else x).square().sum()
    loss.backward()
    optimizer.step()
    return loss


# -- statistics for a logger -------------------------------------------------------------------


def test_metrics_offer_statistics_of_the_last_recorded_step(watching):
    model = small()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, every=2, hyperparameters=True)
    step(model, optimizer)
    used = model[2].weight.detach().clone()
    for _ in range(2):
        before, used = used, model[2].weight.detach().clone()
        loss = step(model, optimizer).detach()
        watch.log(loss=loss)
    found = watch.metrics(stats=["rms", "norm", "max_abs"])
    grad = model[2].weight.grad
    assert found["gradient/2.weight/norm"] == pytest.approx(float(grad.norm()), rel=1e-5)
    assert found["parameter/2.weight/norm"] == pytest.approx(float(used.norm()), rel=1e-5)
    assert found["update/2.weight/max_abs"] == pytest.approx(1e-3 * float(grad.abs().max()), 1e-3)
    assert found["activation/[root module]/rms"] > 0
    assert found["loss"] == pytest.approx(float(loss))
    assert found["grad_norm"] == pytest.approx(
        math.hypot(*(float(p.grad.norm()) for p in model.parameters())), rel=1e-5
    )
    assert not torch.equal(before, used)
    assert not any("/rms" in key for key in watch.metrics())


def test_metrics_can_be_chosen_by_kind_pattern_and_prefix(watching):
    model = small()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("largest", torch.max)
    step(model, optimizer)
    watch.log(loss=1.0)
    assert set(watch.metrics(stats="mean", kinds="output", include="0", prefix="train/debug")) == {
        "train/debug/activation/0/mean",
        "train/debug/activation/0/largest",
        "train/debug/loss",
    }
    found = watch.metrics(stats="mean", kinds=("param", "param_grad"), include="2*")
    assert set(found) == {
        *(
            f"{kind}/2.{name}/mean"
            for kind in ("parameter", "gradient")
            for name in ("weight", "bias")
        ),
        "activation/2/largest",
        "loss",
    }
    assert "activation/0/mean" in watch.metrics(stats="mean", kinds="activations")


def test_gradients_before_clipping_are_not_among_them(watching):
    model = small()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    model(torch.ones(5, 4)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    assert not any("before_clip" in key for key in watch.metrics(stats="norm"))


@pytest.mark.parametrize(
    "wrong", [{"stats": "p99"}, {"stats": "sharp"}, {"stats": "rms", "kinds": "x"}]
)
def test_what_metrics_cannot_offer_is_an_error(watching, wrong):
    model = small()
    watch, _ = watching(model, sgd(model))
    with pytest.raises(sonde.SondeError):
        watch.metrics(**wrong)


def test_any_logger_is_fed_in_one_line(watching):
    class Logger:
        def __init__(self):
            self.calls = []

        def log_metrics(self, data, step):
            self.calls.append((step, data))

    model, logger = small(), Logger()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    for at in range(3):
        step(model, optimizer)
        logger.log_metrics(watch.metrics(stats=["mean", "std"], prefix="train"), step=at)
    assert [at for at, _ in logger.calls] == [0, 1, 2]
    assert all(isinstance(v, float) for _, data in logger.calls for v in data.values())
    assert logger.calls[0][1].keys() == logger.calls[2][1].keys()
    assert logger.calls[0][1] != logger.calls[2][1]


# -- the same name twice -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reduce", "value"), [("last", 6.0), ("mean", 3.0), ("sum", 9.0), ("min", 1.0), ("max", 6.0)]
)
def test_a_scalar_that_is_logged_again_in_a_step_is_reduced_as_said(watching, reduce, value):
    model = small()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    for at in range(2):
        step(model, optimizer)
        for x in (1.0, torch.tensor(2.0), 6.0 + at):
            watch.log(loss=x, reduce=reduce)
    assert watch.metrics()["loss"] == pytest.approx(
        value + {"mean": 1 / 3, "min": 0}.get(reduce, 1)
    )
    watch.close()
    with sonde.open(watch.path, frame="arrow") as run:
        assert run.scalars("loss")["value"].to_pylist()[0] == pytest.approx(value)
        assert run.scalars("loss").num_rows == 2


def test_an_unknown_reduction_is_refused_and_training_goes_on(watching):
    model = small()
    watch, _ = watching(model, sgd(model))
    with pytest.warns(sonde.SondeWarning, match=r"`reduce`.*mean.*`median`"):
        watch.log(loss=1.0, reduce="median")


def test_reduced_scalars_of_phases_and_steps_do_not_mix(watching):
    model = small()
    watch, memory = watching(model, sgd(model))
    watch.log(a=1.0, reduce="sum", step=3)
    watch.log(a=2.0, reduce="sum", step=4)
    with watch.phase("valid", step=4):
        watch.log(a=5.0, reduce="sum", step=4)
    watch.close()
    assert memory.scalars[3, "train"] == {"a": 1.0}
    assert memory.scalars[4, "train"] == {"a": 2.0}
    assert memory.scalars[4, "valid"] == {"a": 5.0}


# -- steps of one's own ------------------------------------------------------------------------


def test_steps_can_be_numbered_by_the_user(watching):
    model = small()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, every=100)
    recorded = []
    for tokens in (0, 64, 100, 250, 300):
        watch.current_step = tokens
        recorded.append(watch.is_recording)
        assert watch.current_step == tokens
        step(model, optimizer)
        watch.log(seen=tokens)
    watch.close()
    assert recorded == [True, False, True, False, True]
    assert [s for s, p in memory.steps if p == "train"] == [0, 100, 300]
    assert {s: v["seen"] for (s, _), v in memory.scalars.items()} == {
        s: float(s) for s in (0, 64, 100, 250, 300)
    }


def test_an_evaluation_after_a_renumbered_step_goes_by_that_step(watching):
    model = small()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, every=10, phases=("train", "eval"))
    watch.current_step = 50
    step(model, optimizer)
    watch.current_step = 70
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 4))
    watch.close()
    assert (50, "eval") in memory.steps


def test_steps_by_hand_can_be_numbered_too(watching):
    model = small()
    watch, memory = watching(model)
    for at in (5, 9):
        watch.current_step = at
        model(torch.ones(2, 4)).sum().backward()
        watch.step(loss=1.0)
    assert watch.current_step == 10
    watch.close()
    assert [s for s, p in memory.steps if p == "train"] == [5, 9]


@pytest.mark.parametrize("wrong", [0, 1, -1, "3", 2.5, True, None])
def test_steps_only_go_up(watching, wrong):
    model = small()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    step(model, optimizer)
    step(model, optimizer)
    with pytest.warns(sonde.SondeWarning, match="current_step"):
        watch.current_step = wrong
    assert watch.current_step == 2


def test_a_step_that_has_begun_keeps_its_number(watching):
    model = small()
    watch, _ = watching(model, sgd(model))
    model(torch.ones(2, 4))
    with pytest.warns(sonde.SondeWarning, match=r"current_step.*between"):
        watch.current_step = 7
    assert watch.current_step == 0


# -- tensors from anywhere ---------------------------------------------------------------------


def test_a_tensor_outside_of_any_forward_is_recorded(watching):
    model = small()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, every=2)
    watch.add_metric("largest", torch.max, kind="attach")
    for at in range(3):
        loss_per_token = torch.arange(6.0) + at
        watch.record("token_loss", loss_per_token)
        step(model, optimizer)
    watch.close()
    for at in (0, 2):
        found = memory.at(at)["./attach/token_loss"]
        assert (found.count, found.min, found.max) == (6, at, at + 5)
        assert memory.scalars[at, "train"]["attach/token_loss/largest"] == at + 5
    assert memory.at(1) == {}


def test_tensors_recorded_under_one_name_in_a_step_count_together(watching):
    model = small()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    x = torch.ones(3)
    watch.record("x", x)
    watch.record("x", 5 * x)
    step(model, optimizer)
    watch.close()
    assert "./attach/x" not in memory.at(0)
    assert memory.at(1)["./attach/x"].count == 6


def test_recording_something_else_than_a_tensor_is_refused(watching):
    model = small()
    watch, _ = watching(model, sgd(model))
    with pytest.warns(sonde.SondeWarning, match=r"`x` was not recorded.*tensor"):
        watch.record("x", [1, 2])
    with pytest.warns(sonde.SondeWarning, match=r"name"):
        watch.record(3, torch.ones(1))


def test_recording_when_switched_off_or_closed_does_nothing(watching, monkeypatch, tmp_path):
    model = small()
    watch, memory = watching(model, sgd(model))
    watch.close()
    watch.record("x", torch.ones(2))
    watch.current_step = 3
    assert memory.batches == []
    monkeypatch.setenv("SONDE", "off")
    off = sonde.watch(model, dir=tmp_path)
    off.record("x", torch.ones(2))
    off.current_step = 3
    assert off.current_step is None
    assert off.metrics(stats="rms") == {}


# -- the end -----------------------------------------------------------------------------------


def test_the_final_weights_are_recorded_at_the_end(watching):
    model = small()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, every=2, final_parameters=True)
    for _ in range(4):
        step(model, optimizer)
    watch.close()
    with sonde.open(watch.path, frame="arrow") as run:
        final = run.sketch("2.weight", kind="param", phase="final")
        weight = model[2].weight.detach().numpy().astype(np.float64)
        assert final.sum == pytest.approx(weight.sum(), rel=1e-6)
        rows = run.stats(kind="param", phase="final", stat="norm").to_pylist()
        assert {row["step"] for row in rows} == {3}
        assert len(rows) == 4
        assert set(run.stats(phase="final")["kind"].to_pylist()) == {"param"}
        assert run.info["steps"]["recorded"] == 2


def test_final_weights_come_by_default_and_only_after_a_step(tmp_path):
    model = small()
    optimizer = sgd(model)
    with sonde.watch(model, optimizer, dir=tmp_path, name="none"):
        pass
    with sonde.watch(model, optimizer, dir=tmp_path, name="one") as watch:
        step(model, optimizer)
    with sonde.watch(model, optimizer, dir=tmp_path, name="off", final_parameters=False):
        step(model, optimizer)
    with sonde.watch(model, optimizer, dir=tmp_path, name="others", log="output"):
        step(model, optimizer)
    found = {}
    for name in ("none", "one", "off", "others"):
        with sonde.open(tmp_path / name, frame="arrow") as run:
            found[name] = run.stats(phase="final").num_rows
    assert found == {"none": 0, "one": 4, "off": 0, "others": 0}
    assert watch.path.name == "one"


def test_weights_that_cannot_be_read_at_the_end_leave_no_hook_behind(watching):
    model = small()
    optimizer = sgd(model)
    watch, _ = watching(
        model, optimizer, final_parameters=True, strict=True, include=lambda path, module: fine[0]
    )
    fine[0] = True
    step(model, optimizer)
    fine.clear()
    with pytest.raises(IndexError):
        watch.close()
    fine.append(True)
    assert not model[0]._forward_hooks
    assert not optimizer._optimizer_step_post_hooks


# -- gradients per class -----------------------------------------------------------------------


def test_gradients_can_be_left_out_for_a_class_of_modules(watching):
    model = small()
    optimizer = sgd(model)
    watch, memory = watching(
        model, optimizer, exclude={"output_grad": nn.ReLU, "input_grad": ["0", nn.ReLU]}
    )
    step(model, optimizer, torch.ones(5, 4, requires_grad=True))
    watch.close()
    found = set(memory.at(0))
    assert "1/output/0" in found
    assert "1/output_grad/0" not in found
    assert {"0/output_grad/0", "2/output_grad/0", "2/input_grad/0"} <= found
    assert not {"0/input_grad/0", "1/input_grad/0"} & found
    assert "0/param_grad/weight" in found


def test_leaving_out_an_unknown_kind_is_an_error(tmp_path):
    with pytest.raises(sonde.SondeError, match=r"`exclude`.*`grads`"):
        sonde.watch(small(), dir=tmp_path, exclude={"grads": nn.ReLU})
    with pytest.raises(sonde.SondeError, match=r"`exclude`.*`param`"):
        sonde.watch(small(), dir=tmp_path, exclude={"param": nn.ReLU})


# -- a trace of one call -----------------------------------------------------------------------


def test_one_call_is_traced_and_gives_its_output():
    model = small()
    x = torch.ones(2, 4)
    for mode in (True, False):
        model.train(mode)
        output, results = sonde.trace_once(model, ["0", "forward"], x)
        assert torch.equal(output, model(x))
        assert torch.equal(results["forward"].values[0], output)
        assert torch.equal(results["0"].values[0], model[0](x))
        assert [len(found.iterations) for found in results.values()] == [1, 1]
    assert not model._forward_hooks


def test_a_note_marks_its_step_and_is_no_number(tmp_path):
    model = nn.Linear(4, 4)
    with sonde.watch(model, every=1, dir=tmp_path, name="noted") as watch:
        for step in range(4):
            model(torch.ones(2, 4))
            if step == 2:
                watch.log(note="lr halved", loss=1.0)
            watch.step()
        watch.log(note="the end", step=9)
    run = sonde.open(tmp_path / "noted")
    rows = run.sql("select step, message from events where code = 'note' order by step")
    assert rows.values.tolist() == [[2, "lr halved"], [9, "the end"]]
    assert set(run.scalars()["name"]) == {"loss"}


def test_a_number_called_note_is_a_number(tmp_path):
    model = nn.Linear(4, 4)
    with sonde.watch(model, every=1, dir=tmp_path, name="number") as watch:
        model(torch.ones(2, 4))
        watch.log(note=0.5)
        watch.step()
    assert sonde.open(tmp_path / "number").scalars("note")["value"].tolist() == [0.5]
