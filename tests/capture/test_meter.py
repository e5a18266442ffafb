"""What recording costs on a device, from events that come to pass when they like.

The events of a real device are used in `tests/gpu`.
"""

from hypothesis import given
from hypothesis import strategies as st

from sonde.capture.torch.cuda.timer import _WAITING, StepTimer


class Device:
    """A stream that runs behind: events come to pass when `at` reaches them."""

    def __init__(self):
        self.end_ms = 0.0
        self.at_ms = 0.0
        self.n_events = 0

    def event(self):
        self.n_events += 1
        return Event(self)

    def work(self, ms):
        self.end_ms += ms


class Event:
    def __init__(self, device):
        self.device = device

    def record(self, _stream):
        self.time_ms = self.device.end_ms

    def query(self):
        return self.time_ms <= self.device.at_ms

    def elapsed_time(self, later):
        assert self.query()
        assert later.query()
        return later.time_ms - self.time_ms


def run(steps_ms, every, behind):
    device = Device()
    meter = StepTimer(device.event, stream=lambda: None)
    for i, ms in enumerate(steps_ms):
        device.work(ms)
        device.at_ms = max(device.at_ms, device.end_ms - behind)
        meter.mark(is_recorded=i % every == 0)
    return meter, device


@given(
    extra=st.floats(0.0, 50.0),
    every=st.integers(2, 9),
    behind=st.floats(0.0, 400.0),
    usual=st.floats(1.0, 100.0),
)
def test_the_difference_between_steps_is_found(extra, every, behind, usual):
    steps = [usual + (extra if i % every == 0 else 0.0) for i in range(120)]
    meter, device = run(steps, every, behind)
    if behind > 20 * usual:
        return  # too few have come to pass
    cost = meter.cost
    assert abs(cost.other_step_s - usual / 1e3) < 1e-9
    assert abs(cost.recorded_step_s - (usual + extra) / 1e3) < 1e-9
    assert meter.added_s <= 120 / every * extra / 1e3 + 1e-6
    assert device.n_events <= _WAITING + 3


def test_one_slow_step_is_no_cost():
    steps = [10.0] * 60
    steps[31] = 5000.0  # an evaluation, say
    meter, _ = run(steps, 5, 0.0)
    assert meter.cost.other_step_s == 0.01
    assert meter.added_s < 1e-9


def test_steps_that_are_skipped_are_in_no_span():
    device = Device()
    meter = StepTimer(device.event, stream=lambda: None)
    for i in range(60):
        device.work(10.0)
        device.at_ms = device.end_ms
        if i % 6 < 3:
            meter.mark(is_recorded=i % 6 == 2)
        else:
            meter.skip()
    assert meter.cost == (0.01, 0.01)
    assert meter.added_s == 0.0


def test_nothing_is_said_without_steps_of_both_kinds():
    assert run([10.0] * 50, 1, 0.0)[0].cost is None
    assert run([10.0] * 5, 2, 0.0)[0].cost is None


def test_a_device_that_is_far_behind_is_left_alone():
    device = Device()
    meter = StepTimer(device.event, stream=lambda: None)
    for i in range(1000):
        device.work(10.0)
        meter.mark(is_recorded=i % 2 == 0)
    assert device.n_events <= _WAITING + 2
    assert meter.cost is None
