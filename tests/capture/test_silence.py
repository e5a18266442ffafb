"""Mistakes that leave a run empty or wrong: one warning, at the user's line, and one in the run."""

import warnings

import pytest
import torch
from torch import nn

import sonde


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def train(model, optimizer, n=1):
    for _ in range(n):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def caught():
    """Warnings of Sonde's, as they come."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def texts(caught):
    return [str(w.message) for w in caught if issubclass(w.category, sonde.SondeWarning)]


def assert_said_once(caught, memory, watch, code, text):
    """One warning that points at this file, one event in the run, with the same text."""
    watch.close()
    ours = [w for w in caught if issubclass(w.category, sonde.SondeWarning)]
    assert [str(w.message) for w in ours if text in str(w.message)] == texts(caught)
    assert len(ours) == 1
    assert ours[0].filename == __file__
    with open(__file__) as source:
        line = source.read().splitlines()[ours[0].lineno - 1]
    assert [e.message for e in memory.events if e.code == code] == [str(ours[0].message)]
    assert [e.level for e in memory.events if e.code == code] == ["warning"]
    return line


# -- steps that never end ----------------------------------------------------------------------


def test_a_training_without_an_optimizer_is_told_to_give_one(watching, model, caught):
    watch, memory = watching(model)
    train(model, sgd(model), 200)
    line = assert_said_once(caught, memory, watch, "no_step", "no step has ended")
    assert "model(torch.ones" in line
    assert "call watch.step() after each update" in texts(caught)[0]


@pytest.mark.parametrize("every", [1, 10, [(3, 5)]], ids=str)
@pytest.mark.parametrize("is_kept", [False, True], ids=["gone", "kept"])
def test_an_optimizer_that_was_replaced_is_noticed(watching, model, caught, every, is_kept):
    first = sgd(model)
    watch, memory = watching(model, first, every=every)
    train(model, first, 7)
    second = sgd(model)
    if not is_kept:
        del first
    train(model, second, 50)
    assert_said_once(caught, memory, watch, "no_step", "Another optimizer than the one given")
    assert "counts as step 7" in texts(caught)[0]


def test_a_training_whose_parameters_never_change_is_noticed_later(watching, model, caught):
    watch, memory = watching(model, log="output")
    for _ in range(1100):
        model(torch.ones(1, 4))
    assert_said_once(caught, memory, watch, "no_step", "1000 training passes")


def test_micro_batches_evaluations_and_rollouts_are_no_reason_to_warn(watching, model, caught):
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, every=10)
    for _ in range(3):
        for _ in range(300):
            model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for _ in range(700):
                model(torch.ones(1, 4))
        model.eval()
        for _ in range(700):
            model(torch.ones(1, 4))
        model.train()
    watch.close()
    assert texts(caught) == []


def test_an_optimizer_that_steps_more_often_than_the_last_is_no_reason_to_warn(
    watching, model, caught
):
    often, seldom = sgd(model[0]), sgd(model[2])
    watch, _ = watching(model, [often, seldom])
    for _ in range(2):
        train(model, often, 30)
        seldom.step()
    watch.close()
    assert texts(caught) == []


def test_a_warning_that_is_an_error_does_not_stop_training(watching, model, unheard):
    watch, memory = watching(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, sgd(model), 50)
    watch.close()
    assert [e.code for e in memory.events if e.level == "warning"] == ["no_step"]
    assert "no step has ended" in unheard.pop()


# -- when a watch begins -----------------------------------------------------------------------


def test_an_optimizer_of_another_model_is_noticed(model, memory, tmp_path, caught):
    watch = sonde.watch(model, sgd(nn.Linear(2, 2)), dir=tmp_path, sinks=[memory])
    assert_said_once(
        caught, memory, watch, "foreign_optimizer", "trains no parameter of Sequential"
    )


def test_the_optimizer_among_several_that_trains_nothing_is_named(model, memory, tmp_path, caught):
    optimizers = [sgd(model), torch.optim.AdamW(nn.Linear(2, 2).parameters())]
    watch = sonde.watch(model, optimizers, dir=tmp_path, sinks=[memory])
    assert_said_once(caught, memory, watch, "foreign_optimizer", "AdamW (2 of 2)")


def test_an_optimizer_of_a_part_of_the_model_is_no_reason_to_warn(watching, model, caught):
    watch, _ = watching(model, sgd(model[0]))
    train(model, sgd(model[0]), 3)
    watch.close()
    assert texts(caught) == []


def test_a_model_that_is_watched_already_is_noticed(model, memory, tmp_path, caught):
    first = sonde.watch(model, sgd(model), dir=tmp_path, name="first")
    second = sonde.watch(model, sgd(model), dir=tmp_path, name="second", sinks=[memory])
    line = assert_said_once(caught, memory, second, "watched_twice", "for the run 'first'")
    assert 'name="second"' in line
    first.close()


def test_a_model_that_is_watched_in_a_loop_and_closed_is_no_reason_to_warn(model, tmp_path, caught):
    for i in range(3):
        with sonde.watch(model, sgd(model), dir=tmp_path, name=f"run-{i}"):
            pass
    assert texts(caught) == []


# -- names that match nothing ------------------------------------------------------------------


def test_a_metric_that_is_asked_nowhere_is_noticed(watching, model, caught):
    watch, memory = watching(model, sgd(model))
    watch.add_metric("mine", torch.mean, where="layers.*")
    line = assert_said_once(
        caught, memory, watch, "metric_nowhere", "`where='layers.*'` matches no"
    )
    assert "watch.add_metric" in line
    assert "Paths look like: 0, 1, 2" in texts(caught)[0]


def test_a_metric_of_some_parameter_is_no_reason_to_warn(watching, model, caught):
    watch, _ = watching(model, sgd(model))
    watch.add_metric("mine", torch.mean, kind="param", where="2.weight")
    watch.add_metric("other", torch.mean, where=nn.ReLU)
    watch.add_metric("all", torch.mean)
    watch.close()
    assert texts(caught) == []


class Attaching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return sonde.attach(self.linear(x), "scores")


def test_a_tensor_that_is_attached_outside_of_the_model_is_noticed(watching, model, caught):
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    for _ in range(3):
        sonde.attach(model(torch.ones(3, 4)), "loss").sum().backward()
        optimizer.step()
    assert_said_once(caught, memory, watch, "attach_unheard", "no watched module was being called")


def test_a_tensor_that_is_attached_though_log_has_no_such_kind_is_noticed(watching, caught):
    model = Attaching()
    watch, memory = watching(model, sgd(model), log="output")
    train(model, sgd(model))
    watch.close()
    assert texts(caught) == []
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, log="output", name="second")
    train(model, optimizer, 2)
    assert_said_once(caught, memory, watch, "attach_unheard", "neither `attach` nor `attach_grad`")


def test_a_tensor_that_is_recorded_somewhere_is_no_reason_to_warn(watching, caught):
    """A second model with the same code, such as a teacher, is not watched on purpose."""
    model, teacher = Attaching(), Attaching()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    for _ in range(2):
        (model(torch.ones(3, 4)) - teacher(torch.ones(3, 4))).sum().backward()
        optimizer.step()
    watch.close()
    assert texts(caught) == []
    assert memory.at(0)["./attach/scores"].count == 6


def test_a_metric_that_is_not_a_number_names_its_module(watching, model):
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    watch.add_metric("broken", lambda x: x.mean() * float("nan"), where="2")
    train(model, optimizer)
    watch.close()
    found = [(e.where, e.message) for e in memory.events if e.code == "metric_nan"]
    assert [message for _, message in found] == ["is not a number at `2`"]
