"""Putting together what metrics return: exactly, however it came in pieces."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.capture.torch.cuda.copies import HostCopies, number
from sonde.capture.torch.metrics.accumulate import StepAccumulators, span_of
from sonde.metrics.model import Merge, OnHost
from sonde.metrics.names import Label

NOW = ("train", 3)
LABEL = Label("fc", "x", "activation/fc/x")


def reduced(values, reduce="mean"):
    tallies = StepAccumulators()
    for value in values:
        tallies.add(LABEL, reduce, value, when=NOW)
    sent = tallies.take(lambda key, error: pytest.fail(f"{key}: {error!r}"))
    assert len(tallies) == 0
    return sent[NOW].flat() if sent else {}


SIMPLE = {"mean": np.mean, "sum": np.sum, "min": np.min, "max": np.max}


@pytest.mark.parametrize("reduce", SIMPLE)
@given(
    values=st.lists(st.integers(-1000, 1000), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    as_numbers=st.booleans(),
)
def test_pieces_of_any_size_give_the_result_of_the_whole(reduce, values, cuts, as_numbers):
    whole = torch.tensor(values, dtype=torch.float32)
    edges = [0, *sorted(min(c, len(values)) for c in cuts), len(values)]
    parts = [whole[a:b] for a, b in itertools.pairwise(edges)]
    if as_numbers:
        parts = [*parts[:-1], *parts[-1].tolist()]
    assert reduced(parts, reduce)["activation/fc/x"] == SIMPLE[reduce](np.float64(values))


@given(
    values=st.lists(st.integers(-1000, 1000), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    alone=st.lists(st.tuples(st.sampled_from(list(SIMPLE)), st.integers(-99, 99)), max_size=3),
    fewer=st.booleans(),
)
def test_metrics_that_are_reduced_together_say_what_each_would_say(values, cuts, alone, fewer):
    """Also if some of them are asked by themselves too, or beside others than before."""
    labels = {reduce: Label("fc", reduce, f"activation/fc/{reduce}") for reduce in SIMPLE}
    edges = [0, *sorted(min(c, len(values)) for c in cuts), len(values)]
    parts = [values[a:b] for a, b in itertools.pairwise(edges) if a < b]
    every = {reduce: list(values) for reduce in SIMPLE}
    tallies = StepAccumulators()
    groups = [(list(labels.values()), list(SIMPLE)), (list(labels.values())[1:], list(SIMPLE)[1:])]
    for i, part in enumerate(parts):
        which, reduces = groups[fewer and i % 2]
        combined = [sum(part) if r in ("mean", "sum") else SIMPLE[r](part) for r in reduces]
        said = torch.tensor(combined[::-1], dtype=torch.float64)
        places = [(len(reduces) - 1 - k, len(part)) for k in range(len(reduces))]
        tallies.put(which, reduces, said, places, when=NOW)
        if len(reduces) < len(SIMPLE):
            tallies.add(labels["mean"], "mean", torch.tensor(part, dtype=torch.float64), when=NOW)
    for reduce, value in alone:
        tallies.add(labels[reduce], reduce, torch.tensor(float(value)), when=NOW)
        every[reduce].append(value)
    found = tallies.take(lambda key, error: pytest.fail(f"{key}: {error!r}"))[NOW].flat()
    assert found == {labels[r].key: SIMPLE[r](np.float64(every[r])) for r in SIMPLE}


def test_more_pieces_than_are_kept_apart():
    values = [torch.tensor(float(i)) for i in range(1000)]
    assert reduced(values)["activation/fc/x"] == 499.5
    assert reduced(values, "max")["activation/fc/x"] == 999
    assert reduced(values, "sum")["activation/fc/x"] == 499500


def test_a_reduction_of_ones_own_sees_all_elements():
    parts = [torch.tensor([1.0]), torch.tensor([[2.0, 9.0]]), 4.0]
    assert reduced(parts, torch.median)["activation/fc/x"] == 2.0
    found = reduced(parts, lambda x: {"low": x.min(), "n": len(x)})
    assert found == {"activation/fc/x/low": 1.0, "activation/fc/x/n": 4.0}


def test_merged_values_are_finished_once():
    how = Merge(torch.maximum, lambda m: {"dead": (m == 0).float().mean(), "top": m.max()})
    found = reduced([torch.tensor([0.0, 0, 5]), torch.tensor([0.0, 1, 2])], how)
    assert found == {"activation/fc/x/dead": pytest.approx(1 / 3), "activation/fc/x/top": 5.0}


def test_a_dict_of_numbers_and_tensors():
    found = reduced([{"a": 1, "b/c": torch.ones(3)}, {"a": 3, "b/c": torch.zeros(1)}])
    assert found == {"activation/fc/x/a": 2.0, "activation/fc/x/b/c": 0.75}


def test_numbers_that_only_the_host_can_make():
    given_ = [
        OnHost(torch.eye(2) * 3, lambda a: float(a.trace())),
        OnHost(torch.eye(1), lambda a: 2.0),
    ]
    assert reduced(given_)["activation/fc/x"] == 4.0


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]
)
def test_any_dtype(dtype):
    assert (
        reduced([torch.ones((), dtype=dtype), torch.ones(3, dtype=dtype)])["activation/fc/x"] == 1.0
    )


@pytest.mark.parametrize("reduce", SIMPLE)
def test_nan_and_inf_are_data(reduce):
    assert math.isnan(reduced([torch.tensor([1.0, math.nan]), 2.0], reduce)["activation/fc/x"])
    assert math.isnan(reduced([1.0, math.nan], reduce)["activation/fc/x"])
    assert reduced([torch.tensor(math.inf), 1.0], "max")["activation/fc/x"] == math.inf


def test_nothing_is_recorded_of_nothing():
    assert reduced([None, torch.empty(0)]) == {}


@pytest.mark.parametrize("value", ["text", [1.0], object(), torch.ones(2, dtype=torch.complex64)])
def test_what_is_no_number_is_an_error(value):
    with pytest.raises(TypeError, match=r"it (must return|returned)"):
        StepAccumulators().add(LABEL, "mean", value, when=NOW)


def test_a_view_of_the_tensor_is_not_kept():
    """It would keep the whole tensor, and change with it."""
    x = torch.ones(1000)
    tallies = StepAccumulators()
    tallies.add(LABEL, "mean", x[0], when=NOW, within=span_of(x))
    x.zero_()
    assert tallies.take(pytest.fail)[NOW].flat() == {"activation/fc/x": 1.0}


def test_steps_and_phases_are_kept_apart():
    tallies = StepAccumulators()
    for when in (("train", 1), ("eval", 1), ("eval", 2)):
        tallies.add(LABEL, "sum", 1.0, when=when)
        tallies.add(LABEL, "sum", torch.tensor(float(when[1])), when=when)
    sent = tallies.take(pytest.fail)
    assert {k: s.flat()["activation/fc/x"] for k, s in sent.items()} == {
        ("train", 1): 2.0,
        ("eval", 1): 2.0,
        ("eval", 2): 3.0,
    }


def test_a_reduction_that_raises_is_told_and_leaves_the_others():
    tallies = StepAccumulators()
    tallies.add(LABEL, lambda x: 1 / 0, 1.0, when=NOW)
    tallies.add(Label("fc", "y", "y"), "mean", 1.0, when=NOW)
    told = []
    sent = tallies.take(lambda key, error: told.append((key, type(error))))
    assert told == [("activation/fc/x", ZeroDivisionError)]
    assert sent[NOW].flat() == {"y": 1.0}


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=6),
    dtypes=st.lists(st.sampled_from([torch.float32, torch.float64, torch.int32]), min_size=6),
)
def test_tensors_arrive_as_they_were_sent(shapes, dtypes):
    sent = [
        torch.arange(int(np.prod(s)), dtype=d).reshape(s)
        for s, d in zip(shapes, dtypes, strict=False)
    ]
    arrived = HostCopies(sent)
    expected = [x.clone() for x in sent]
    for x in sent:
        x.zero_()
    for array, x in zip(arrived.arrays(), expected, strict=True):
        np.testing.assert_array_equal(array, x.numpy())


def test_a_number_is_that_of_when_it_was_sent():
    x = torch.tensor([2.5], requires_grad=True)
    later = number(x)
    x.data.zero_()
    assert later() == later() == 2.5
