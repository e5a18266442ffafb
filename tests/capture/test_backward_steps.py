"""Steps that are backward passes end with them, while gradients are there."""

import pytest
import torch
from torch import nn

from sonde.capture.torch import backwards
from sonde.capture.torch.backwards import BackwardSteps


class Ends:
    """Counts steps, and whether gradients were there when they ended."""

    def __init__(self, model, **options):
        self.model, self.seen = model, []
        self.steps = BackwardSteps(model, self.end, **options)

    def end(self):
        self.seen.append(all(p.grad is not None for p in self.model.parameters()))


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


X = torch.randn(4, 2)


def test_each_backward_is_a_step_with_its_gradients(model):
    ends = Ends(model)
    for _ in range(3):
        model.zero_grad()
        model(X).sum().backward()
    assert ends.seen == [True] * 3


def test_several_forwards_before_one_backward_are_one_step(model):
    ends = Ends(model)
    (model(X).sum() + model(X).sum()).backward()
    assert ends.seen == [True]


def test_evaluation_and_passes_without_gradients_are_no_steps(model):
    ends = Ends(model)
    model.eval()
    model(X).sum().backward()
    model.train()
    with torch.no_grad():
        model(X)
    assert ends.seen == []


def test_steps_that_wait_take_all_backwards_up_to_the_next_forward(model):
    ends = Ends(model, waits=True)
    for _ in range(2):
        a, b = model(X), model(X)
        a.sum().backward()
        assert len(ends.seen) in {0, 1}
        b.sum().backward()
    unused = model(X)
    model(X).sum().backward()
    assert len(ends.seen) == 2
    del unused
    ends.steps.close()
    assert ends.seen == [True] * 3


def test_without_the_callback_of_torch_a_step_ends_when_the_next_forward_begins(model, monkeypatch):
    monkeypatch.setattr(backwards, "after_backward", None)
    ends = Ends(model)
    model(X).sum().backward()
    assert ends.seen == []
    model(X).sum().backward()
    assert ends.seen == [True]
    ends.steps.close()
    assert ends.seen == [True, True]


def test_closed_steps_leave_no_hook(model):
    ends = Ends(model)
    ends.steps.close()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    model(X).sum().backward()
    assert ends.seen == []


def test_a_backward_in_another_thread_ends_the_step(model):
    import threading

    ends = Ends(model)
    loss = model(X).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert ends.seen == [True]
