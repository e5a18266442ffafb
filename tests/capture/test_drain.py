"""When the drain works: in one go for several steps, at once for whoever needs it."""

import threading
from contextlib import nullcontext
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest

from sonde.capture import drain as draining
from sonde.capture.drain import Drain, StepEnd, WindowRows
from sonde.capture.torch.rows.pinned import NoRoom, PinnedPlaces, PlacedRows
from sonde.capture.window import Window
from sonde.kernels import layout
from sonde.sketch import take

SOON_S = 30.0
"""Much less than the rest in these tests, much more than anybody needs."""


class Filled:
    """One row; `read` comes to pass when somebody has."""

    size_bytes = layout.ROW_BYTES

    def __init__(self, can_wait):
        self.can_wait = can_wait
        self.read = threading.Event()

    def sketches(self, rows):
        self.read.set()
        return take(layout.unpack(layout.new_table(1)), rows)


def put(drain, step, *, can_wait):
    window = Window()
    window.touched["train"] = [(0, [0])]
    filled = Filled(can_wait)
    drain.put(WindowRows({"train": step}, filled, window))
    drain.put(StepEnd(step, "train"))
    return filled


@pytest.fixture
def resting(monkeypatch):
    """Drains rest for ever, unless they are woken."""
    monkeypatch.setattr(draining, "_REST_S", 3600.0)


@pytest.fixture
def drain(memory, resting):
    made = Drain([memory])
    yield made
    made.close("finished", SOON_S)


def steps(memory):
    return [step for step, _ in memory.steps]


def test_what_can_wait_is_done_together_once_somebody_waits_for_it(drain, memory):
    filled = [put(drain, step, can_wait=True) for step in range(3)]
    assert not filled[0].read.wait(0.3)
    assert drain.wait(SOON_S)
    assert all(each.read.is_set() for each in filled)
    assert steps(memory) == [0, 1, 2]


def test_rows_that_cannot_wait_are_read_at_once_with_all_before_them(drain):
    filled = [put(drain, 0, can_wait=True), put(drain, 1, can_wait=False)]
    assert filled[1].read.wait(SOON_S)
    assert filled[0].read.is_set()


def test_each_wait_is_answered(drain, memory):
    for step in range(20):
        put(drain, step, can_wait=True)
        assert drain.wait(SOON_S)
        assert steps(memory)[-1] == step


@pytest.mark.usefixtures("resting")
def test_nothing_is_left_when_it_is_closed(memory):
    drain = Drain([memory])
    for step in range(3):
        put(drain, step, can_wait=True)
    drain.close("finished", SOON_S)
    assert steps(memory) == [0, 1, 2]


def test_without_being_woken_it_goes_on_after_its_rest(memory, monkeypatch):
    monkeypatch.setattr(draining, "_REST_S", 0.05)
    drain = Drain([memory])
    for step in range(3):
        assert put(drain, step, can_wait=True).read.wait(SOON_S)
    drain.close("finished", SOON_S)


def packed(table):
    """Rows as the kernel writes them into a place, with some room behind them."""
    heads, bins = table[:, : layout.HEADER].copy(), []
    for head, counts in zip(heads, table[:, layout.HEADER :], strict=True):
        held = np.flatnonzero(counts)
        head[13:15] = len(held), len(bins)
        bins += (counts[held] << 11 | held).tolist()
    return np.concatenate([heads.ravel(), np.array(bins, np.int64), np.full(9, -1)])


def filled_table(n_rows):
    table, rng = layout.new_table(n_rows), np.random.default_rng(0)
    for i in range(n_rows):
        held = rng.choice(2048, size=3 * i, replace=False)
        table[i, layout.HEADER + held] = rng.integers(1, 1 << 50, size=3 * i)
        table[i, :10] = rng.integers(1, 1 << 40, size=10)
    return table


def place_with(words, *, is_busy=True):
    """Nobody has to wait here until rows are there."""
    arrived = SimpleNamespace(synchronize=lambda: None)
    memory = SimpleNamespace(view=lambda: memoryview(words).cast("B"), nbytes=words.nbytes)
    return SimpleNamespace(arrived=arrived, memory=memory, is_busy=is_busy)


@pytest.fixture
def places():
    made = PinnedPlaces(SimpleNamespace(), slice_rows=16)
    made.rows = 32
    return made


def test_packed_rows_of_a_gpu_are_what_they_were(places):
    table = filled_table(20)
    rows = np.array([3, 17, 0, 3, 16, 11])  # from 16 on those for CUDA graphs, behind 12 others
    place = place_with(packed(np.concatenate([table[:12], table[16:]])))
    mine = PlacedRows(places, place, used=12, n_rows=16).sketches(rows)
    its = take(layout.unpack(table), rows)
    for column in fields(its):
        found, wanted = getattr(mine, column.name), getattr(its, column.name)
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("fits", [True, False])
def test_a_place_for_rows_of_a_gpu_is_free_again_whether_it_could_be_read_or_not(places, fits):
    words = packed(filled_table(8))
    if not fits:
        words[5 * layout.HEADER + 14] = -1
    place = place_with(words)
    places.is_sliced = True
    before = places._bytes
    with nullcontext() if fits else pytest.raises(NoRoom, match="later steps have twice as much"):
        PlacedRows(places, place, used=8, n_rows=8).sketches(np.array([3, 5]))
    assert not place.is_busy
    assert places._bytes == (before if fits else 2 * before)
