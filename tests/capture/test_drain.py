"""When the drain works: in one go for several steps, at once for whoever needs it."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sonde.capture import drain as draining
from sonde.capture.drain import Drain, End, Part
from sonde.capture.rows import Window
from sonde.capture.torch.cuda import _CudaRows
from sonde.kernels import row
from sonde.sketch import take

SOON_S = 30.0
"""Much less than the rest in these tests, much more than anybody needs."""


class Filled:
    """One row; `read` comes to pass when somebody has."""

    size_bytes = row.ROW_BYTES

    def __init__(self, can_wait):
        self.can_wait = can_wait
        self.read = threading.Event()

    def sketches(self, rows):
        self.read.set()
        return take(row.unpack(row.new_table(1)), rows)


def put(drain, step, *, can_wait):
    window = Window()
    window.touched["train"] = [(0, [0])]
    filled = Filled(can_wait)
    drain.put(Part({"train": step}, filled, window))
    drain.put(End(step, "train"))
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


@pytest.mark.parametrize(("row_index", "is_there"), [(255, True), (256, False)])
def test_a_place_for_rows_of_a_gpu_is_free_again_whether_it_could_be_read_or_not(
    row_index, is_there
):
    """Of the memory that they are brought to; here nobody has to wait until they are there."""
    table = row.new_table(512)  # it once held more
    arrived = SimpleNamespace(synchronize=lambda: None)
    memory = torch.from_numpy(table).flatten().view(torch.uint8)
    place = SimpleNamespace(arrived=arrived, memory=memory, is_busy=True)
    rows = _CudaRows(place, 256 * row.ROW_BYTES, can_wait=True)
    with nullcontext() if is_there else pytest.raises(ValueError, match="between 0 and 255"):
        assert len(rows.sketches(np.array([3, row_index])).counts) == 2
    assert not place.is_busy
