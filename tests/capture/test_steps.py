"""Right step, right phase: schedules, evaluation, pauses, and where a scalar belongs."""

import threading
from contextlib import closing

import pytest
import torch
from torch import nn

import sonde


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer, n=1):
    for _ in range(n):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def train_steps(memory):
    return [s for s, phase in memory.steps if phase == "train"]


# -- schedules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (1, [0, 1, 2, 3, 4, 5, 6, 7]),
        (3, [0, 3, 6]),
        (100, [0]),
        (lambda s: s in (2, 5), [2, 5]),
        ([(1, 3), (4, 8, 2)], [1, 2, 4, 6]),
        ([range(6, 8)], [6, 7]),
        ([], []),
    ],
)
def test_a_schedule_says_which_steps_are_recorded(watching, model, optimizer, every, expected):
    watch, memory = watching(model, optimizer, every=every)
    recorded = []
    for _ in range(8):
        recorded.append(watch.is_recording)
        step(model, optimizer)
    watch.close()
    assert train_steps(memory) == expected
    assert [s for s, is_on in enumerate(recorded) if is_on] == expected


def test_every_recorded_step_is_whole(watching, model, optimizer):
    """A step that follows one that was not recorded has all that any other has."""
    watch, memory = watching(model, optimizer, every=3)
    step(model, optimizer, 8)
    watch.close()
    whole = {n: s.count for n, s in memory.at(0).items()}
    assert {n: s.count for n, s in memory.at(3).items()} == whole
    assert {n: s.count for n, s in memory.at(6).items()} == whole


def test_the_schedule_can_be_changed_while_running(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=1)
    assert watch.every == 1
    step(model, optimizer, 2)
    watch.every = [(4, 6)]
    assert watch.every == [(4, 6)]
    step(model, optimizer, 5)
    watch.every = 2
    step(model, optimizer, 2)
    with pytest.raises(sonde.SondeError, match="at least 1 step, got 0"):
        watch.every = 0
    assert watch.every == 2
    watch.close()
    assert train_steps(memory) == [0, 1, 4, 5, 8]


def test_a_schedule_changed_inside_of_a_step_counts_from_the_next(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=1)
    loss = model(torch.ones(3, 4)).sum()
    watch.every = lambda s: s == 2
    loss.backward()
    optimizer.step()
    step(model, optimizer, 3)
    watch.close()
    assert train_steps(memory) == [0, 2]
    assert memory.at(0).keys() == memory.at(2).keys()


def test_a_schedule_that_raises_records_nothing_and_says_so_once(watching, model, optimizer):
    def every(step):
        if step < 1:
            return True
        raise ZeroDivisionError("oops")

    watch, memory = watching(model, optimizer, every=every)
    with pytest.warns(sonde.SondeWarning, match="oops") as warned, closing(watch):
        step(model, optimizer, 4)
    assert len(warned) == 1
    assert train_steps(memory) == [0]
    assert memory.counted("failed") == {("every", "ZeroDivisionError('oops')"): 4}


def test_the_first_step_can_have_any_number(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=2, step=101)
    watch.log(before=1.0)
    step(model, optimizer, 3)
    watch.close()
    assert train_steps(memory) == [102]
    assert memory.scalars == {(101, "train"): {"before": 1.0}}


# -- pauses and phases -------------------------------------------------------------------------


def test_nothing_is_recorded_while_paused(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    with watch.paused():
        assert not watch.is_recording
        step(model, optimizer)
        with watch.paused():
            pass
        step(model, optimizer)
    assert watch.is_recording
    step(model, optimizer)
    watch.close()
    assert train_steps(memory) == [2]


def test_a_pause_ends_when_the_block_raises(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    with pytest.raises(KeyError, match="user"), watch.paused():
        raise KeyError("user")
    step(model, optimizer)
    watch.close()
    assert train_steps(memory) == [0]


def test_evaluation_is_not_recorded_unless_asked(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    model.eval()
    with torch.no_grad():
        model(torch.ones(100, 4))
    model.train()
    step(model, optimizer)
    watch.close()
    assert memory.steps == [(0, "train"), (1, "train")]
    assert memory.at(1)["./output/0"].count == 6


def test_evaluation_is_recorded_under_its_own_phase_when_asked(watching, model, optimizer):
    watch, memory = watching(model, optimizer, phases=("train", "eval"))
    step(model, optimizer)
    model.eval()
    with torch.inference_mode():
        for _ in range(3):
            model(torch.ones(2, 4))
    model.train()
    step(model, optimizer)
    watch.close()
    assert memory.steps == [(0, "train"), (0, "eval"), (1, "train")]
    assert memory.at(0, "eval")["./output/0"].count == 12
    assert {n.split("/")[1] for n in memory.at(0, "eval")} == {"input", "output"}


def test_only_evaluation_can_be_recorded(watching, model, optimizer):
    watch, memory = watching(model, optimizer, phases="eval", log="activations")
    step(model, optimizer)
    model.eval()
    model(torch.ones(2, 4))
    model.train()
    step(model, optimizer)
    watch.close()
    assert memory.steps == [(0, "eval")]


def test_a_named_phase_is_recorded_whatever_the_schedule_says(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=[])
    step(model, optimizer, 2)
    model.eval()
    with watch.phase("validation"), torch.no_grad():
        model(torch.ones(5, 4))
        watch.log(accuracy=0.5)
    model.train()
    step(model, optimizer)
    with watch.phase("probe"):
        model(torch.ones(1, 4)).sum().backward()
    watch.close()
    assert memory.steps == [(1, "validation"), (2, "probe")]
    assert memory.at(1, "validation")["./output/0"].count == 10
    assert memory.at(2, "probe")["./output_grad/0"].count == 2
    assert memory.scalars == {(1, "validation"): {"accuracy": 0.5}}


def test_a_named_phase_is_handed_over_when_it_ends(watching, model, optimizer):
    """Not with the next recorded step, which may be far away."""
    watch, memory = watching(model, optimizer, every=1000)
    step(model, optimizer, 3)
    with watch.phase("validation"):
        model(torch.ones(5, 4))
    assert watch.flush()
    assert memory.steps == [(0, "train"), (2, "validation")]


def test_a_phase_inside_of_a_step_leaves_the_step_whole(watching, model, optimizer):
    watch, memory = watching(model, optimizer, log=["output", "output_grad"])
    loss = model(torch.ones(3, 4)).sum()
    with watch.phase("probe"), torch.no_grad():
        model(torch.ones(7, 4))
    loss.backward()
    optimizer.step()
    watch.close()
    assert memory.at(0, "train")["./output/0"].count == 6
    assert memory.at(0, "train")["./output_grad/0"].count == 6
    assert memory.at(0, "probe")["./output/0"].count == 14


def test_a_frozen_part_in_evaluation_mode_is_part_of_training(watching, model, optimizer):
    model[0].eval()
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    model[0](torch.ones(1, 4))
    watch.close()
    assert memory.at(0)["0/output/0"].count == 12
    assert memory.at(1)["0/output/0"].count == 4


# -- scalars -----------------------------------------------------------------------------------


def test_scalars_belong_to_the_step_they_are_about(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    watch.log(first=0)
    for i in range(3):
        loss = model(torch.ones(3, 4)).sum()
        watch.log(before=i)
        loss.backward()
        optimizer.step()
        watch.log({"after": i, "with/odd name": 1}, loss=loss)
        watch.log(far=i, step=100 + i)
    watch.close()
    for i in range(3):
        found = memory.scalars[i, "train"]
        assert (found["before"], found["after"], found["with/odd name"]) == (i, i, 1)
        assert "loss" in found
        assert memory.scalars[100 + i, "train"] == {"far": i}
    assert memory.scalars[0, "train"]["first"] == 0


def test_scalars_are_kept_at_every_step_not_only_at_recorded_ones(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=10)
    for i in range(5):
        step(model, optimizer)
        watch.log(i=i)
    watch.close()
    assert [memory.scalars[i, "train"]["i"] for i in range(5)] == [0, 1, 2, 3, 4]


def test_anything_that_is_one_number_can_be_logged(watching, model, optimizer):
    import numpy as np

    watch, memory = watching(model, optimizer)
    watch.log(
        a=1,
        b=True,
        c=torch.tensor([[2.5]], requires_grad=True),
        d=np.float32(0.5),
        e=torch.tensor(3, dtype=torch.int64),
        f=float("nan"),
        g=torch.tensor(1.5, dtype=torch.bfloat16),
    )
    watch.close()
    found = memory.scalars[0, "train"]
    assert [found[k] for k in "abcdeg"] == [1, 1, 2.5, 0.5, 3, 1.5]
    assert found["f"] != found["f"]


def test_what_is_no_number_is_refused_and_the_rest_is_kept(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    with pytest.warns(sonde.SondeWarning) as warned:
        watch.log(good=1, bad=torch.ones(2), worse="high", worst=None)
    texts = [str(w.message) for w in warned]
    assert len(texts) == 3
    assert "`bad` was not logged: it must be one number, got a tensor of shape (2,)" in texts[0]
    watch.close()
    assert memory.scalars == {(0, "train"): {"good": 1}}


def test_a_strict_watch_refuses_with_an_error(watching, model, optimizer):
    watch, _ = watching(model, optimizer, strict=True)
    with pytest.raises(sonde.SondeError, match="`bad` was not logged"):
        watch.log(bad="high")


def test_a_step_by_hand_only_logs_where_an_optimizer_is_known(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    with pytest.warns(sonde.SondeWarning, match="only logs here"):
        watch.step(loss=2.0)
    step(model, optimizer)
    watch.close()
    assert train_steps(memory) == [0, 1]
    assert memory.scalars == {(0, "train"): {"loss": 2.0}}


@pytest.mark.parametrize("log", [["param"], ["param", "param_grad"], ["param", "update"]])
def test_a_step_by_hand_records_each_parameter_once(watching, model, log):
    watch, memory = watching(model, log=log)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        watch.step()
    watch.close()
    names = {
        f"{'.'.join(n.split('.')[:-1])}/param/{n.split('.')[-1]}": p.numel()
        for n, p in model.named_parameters()
    }
    for at in (0, 1):
        found = memory.at(at)
        assert {name: found[name].count for name in names} == names


def test_scalars_can_come_from_many_threads(watching, model, optimizer):
    watch, memory = watching(model, optimizer)

    def log(thread):
        for i in range(50):
            watch.log({f"t{thread}": i}, step=i)

    threads = [threading.Thread(target=log, args=(t,)) for t in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    watch.close()
    for i in range(50):
        assert memory.scalars[i, "train"] == {f"t{t}": i for t in range(8)}


# -- what is kept reaches the run --------------------------------------------------------------


def test_what_was_seen_is_in_the_run(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=2)
    step(model, optimizer, 5)
    watch.log(loss=1.0)
    watch.close()
    run = sonde.open(watch.path)
    assert run.status == "finished"
    for name, sketch in memory.at(2).items():
        assert run.sketch(name, step=2) == sketch
    assert run.info["watch"]["recorded_steps"] == 3
    assert 0 < run.info["overhead"]["share"] < 1
    assert run.scalars()["value"].tolist() == [1.0]


@pytest.mark.parametrize(("every", "recorded"), [(3, 3), (lambda _step: False, 7)])
def test_steps_with_sketches_are_those_that_were_recorded(
    watching, model, optimizer, every, recorded
):
    """Scalars are told of every step: they count where there is nothing else."""
    watch, _ = watching(model, optimizer, every=every)
    for i in range(7):
        step(model, optimizer)
        watch.log(loss=float(i))
    watch.close()
    steps = sonde.open(watch.path).info["steps"]
    assert steps == {"first": 0, "last": 6, "recorded": recorded, "known": 7}
