"""Recording stays within its budget, whatever a step costs."""

import time
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sonde
from sonde.capture.budget import Budget
from sonde.capture.plan import schedule_of


def play(budget, clock, costs, step_s=1.0):
    """Train on a clock of our own; the steps that were recorded, and what they cost."""
    recorded = []
    for step, cost in enumerate(costs):
        is_due = budget(step)
        clock["now"] += step_s
        if is_due:
            recorded.append(step)
            clock["now"] += cost
            clock["spent"] += cost
    return recorded


def made(share, every=1):
    clock = {"now": 0.0, "spent": 0.0}
    budget = Budget(
        schedule_of(every), share, spent_s=lambda: clock["spent"], clock=lambda: clock["now"]
    )
    return budget, clock


@given(
    share=st.floats(0.001, 0.5),
    costs=st.lists(st.floats(0.0, 2.0), min_size=50, max_size=200),
    every=st.integers(1, 5),
)
def test_the_cost_never_exceeds_the_share_by_more_than_one_step(share, costs, every):
    budget, clock = made(share, every)
    recorded = play(budget, clock, costs)
    after_first = clock["spent"] - costs[recorded[0]]
    assert after_first <= share * clock["now"] + max(costs) + 1e-9
    assert len(recorded) + budget.left_out == len(range(0, len(costs), every))


def test_a_dense_schedule_becomes_as_sparse_as_it_must():
    budget, clock = made(0.02)
    recorded = play(budget, clock, [0.2] * 2000)
    assert 0.015 < clock["spent"] / clock["now"] < 0.021
    gaps = {b - a for a, b in pairwise(recorded[3:])}
    assert gaps <= {9, 10, 11}


def test_a_cheap_recording_is_left_as_it_is():
    budget, clock = made(0.02, every=5)
    recorded = play(budget, clock, [0.01] * 200)
    assert recorded[2:] == list(range(recorded[2], 200, 5))
    assert budget.left_out <= 1


def test_what_is_done_once_is_free():
    budget, clock = made(0.1)
    recorded = play(budget, clock, [500.0] + [0.05] * 100)
    assert len(recorded) > 90


@pytest.mark.parametrize("share", [0, 1, -0.1, 2, True, "2 %", None, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(sonde.SondeError, match="overhead_budget"):
        Budget(schedule_of(1), share)


def test_a_watch_with_a_budget_leaves_steps_out_and_says_so(tmp_path):
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(10)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sonde.watch(
        model, optimizer, every=1, dir=tmp_path, name="thin", overhead_budget=0.01
    ) as watch:
        for _ in range(400):
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            time.sleep(0.001)
        watch.flush()
    run = sonde.open(tmp_path / "thin")
    overhead = run.info["overhead"]
    assert overhead["budget"] == 0.01
    assert overhead["left_out_steps"] > 0
    assert run.info["watch"]["recorded_steps"] < run.info["watch"]["step"]
    assert run.info["config"]["watch"]["overhead_budget"] == 0.01


def test_a_new_schedule_keeps_the_budget(watching):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch, _ = watching(model, optimizer, every=1, overhead_budget=1e-6)
    for _ in range(20):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    watch.every = 2
    for _ in range(20):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert watch._session.capture.steps.recorded <= 3
    watch.close()
