"""Training goes on: whatever fails, in the model, in us, or in what we feed."""

import contextlib
import os
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from witness import assert_same

import sonde
from sonde.capture.drain import Drain, StepEnd, WindowRows
from sonde.capture.plan import Plan, kinds_of, schedule_of
from sonde.capture.torch.rows.host import HostTable, PlainTable, table_for
from sonde.capture.torch.session import TorchSession
from sonde.capture.window import Window


class Fragile(nn.Module):
    """Raises what it is told to, after its first layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 2)
        self.error = None

    def forward(self, x):
        h = self.first(x)
        if self.error is not None:
            raise self.error
        return self.last(h)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Fragile()


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer, n=1):
    for _ in range(n):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def hooks_on(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# -- the model fails ---------------------------------------------------------------------------


def test_a_forward_that_raised_can_be_tried_again(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    model.error = ValueError("bad batch")
    with pytest.raises(ValueError, match="bad batch"):
        model(torch.ones(3, 4))
    model.error = None
    step(model, optimizer, 2)
    watch.close()
    found = memory.at(0)
    assert found["last/output/0"].count == 6
    assert found["first/output/0"].count == 48  # both attempts made values, under the same name
    assert not any("#" in name for name in found)
    assert memory.at(1)["first/output/0"].count == 24


def test_a_backward_that_raised_can_be_tried_again(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    y = model(torch.ones(3, 4))
    y.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    step(model, optimizer, 2)
    watch.close()
    assert memory.at(1)["./output_grad/0"].count == 6
    assert memory.steps == [(0, "train"), (1, "train")]


def test_an_exception_inside_of_the_model_that_it_handles_itself(watching, optimizer, model):
    class Careful(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            self.other = nn.Linear(4, 2)

        def forward(self, x):
            try:
                return self.inner(x)
            except ValueError:
                return sonde.attach(self.other(x), "fallback")

    outer = Careful(model)
    model.error = ValueError()
    watch, memory = watching(outer, optimizer)
    outer(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    watch.close()
    found = memory.at(0)
    assert found["./output/0"].count == 6
    assert found["./attach/fallback"].count == 6
    assert "inner/output/0" not in found


def test_a_keyboard_interrupt_reaches_the_user_once_and_ends_the_run(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    model.error = KeyboardInterrupt()
    reached = 0
    try:
        with watch:
            step(model, optimizer)
    except KeyboardInterrupt:
        reached += 1
    assert reached == 1
    assert memory.closed == "interrupted"
    assert hooks_on(model) == 0
    assert memory.at(0)
    run = sonde.open(watch.path)
    assert run.info["reason"] == "interrupted"
    assert 0 in run.steps


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), RuntimeError("user")])
def test_the_run_says_how_it_ended(watching, model, optimizer, error):
    watch, memory = watching(model, optimizer)
    with pytest.raises(type(error)), watch:
        raise error
    expected = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    assert memory.closed.startswith(expected)


def test_training_that_goes_on_after_an_interrupt_is_recorded_right(watching, model, optimizer):
    """In a notebook the watch stays open: the next forward begins anew."""
    watch, memory = watching(model, optimizer)
    model.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(3, 4))
    model.error = None
    step(model, optimizer, 2)
    watch.close()
    assert not any("#" in name for name in memory.at(0))
    assert memory.at(1)["last/output/0"].count == 6


def test_an_interrupt_inside_of_our_hook_reaches_the_user(model, optimizer, memory):
    class Interrupted(HostTable):
        def add(self, index, x):
            raise KeyboardInterrupt

    session = session_of(model, optimizer, [memory], table=Interrupted())
    with session, pytest.raises(KeyboardInterrupt):
        step(model, optimizer)
    assert memory.at(0) == {}


# -- we fail -----------------------------------------------------------------------------------


@contextlib.contextmanager
def session_of(model, optimizer, sinks, *, warned=None, table=None, strict=False, capacity=1 << 30):
    """A session without a run, with its own sinks, table and warnings."""
    drain = Drain(sinks, capacity_bytes=capacity)
    plan = Plan(kinds_of("all"), strict=strict)
    session = TorchSession(model, [optimizer], plan, schedule_of(1), drain, step=0)
    session.capture.troubles.warn = (warned if warned is not None else []).append
    if table is not None:
        session.capture.recorder._tables = lambda device: table
    try:
        yield session
    finally:
        session.close()
        drain.close("finished", 10.0)


class Broken(HostTable):
    """Fails for tensors of one shape, after having written something."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def add(self, index, x):
        super().add(index, x)
        if tuple(x.shape) == self.shape:
            raise RuntimeError("broken kernel")


def test_a_kernel_that_raises_switches_off_that_site_alone(model, optimizer, memory):
    warned = []
    with session_of(model, optimizer, [memory], warned=warned, table=Broken((3, 8))):
        step(model, optimizer, 4)
    broken = {"first/output/0", "first/output_grad/0", "last/input/0", "last/input_grad/0"}
    assert len(warned) == len(broken)
    assert "Stopped recording `first/output/0`" in warned[0]
    for at in range(4):
        assert set(memory.at(at)) >= {"./output/0", "last/output/0", "first/param/weight"}
        assert not broken & set(memory.at(at))
    failed = {e.where for e in memory.events if e.code == "failed"}
    assert failed == broken


class BrokenMany(HostTable):
    def add_many(self, *args, **kwargs):
        raise RuntimeError("broken kernel")


def test_a_kernel_that_raises_around_the_optimizer_leaves_the_rest(model, memory):
    warned = []
    optimizer = torch.optim.Adam(model.parameters())
    with session_of(model, optimizer, [memory], warned=warned, table=BrokenMany()):
        step(model, optimizer, 3)
    assert [w.split("`")[1] for w in warned] == ["before the update", "after the update"]
    assert set(memory.at(2)) >= {"./output/0", "last/output_grad/0"}
    assert not any("/param" in n or "/update" in n or "/optim" in n for n in memory.at(2))


def test_training_is_the_same_bits_when_everything_of_ours_fails(model):
    class Dead(HostTable):
        def add(self, index, x):
            raise RuntimeError("dead")

        add_many = add

    def train(watched):
        torch.manual_seed(1)
        fresh = Fragile()
        optimizer = torch.optim.Adam(fresh.parameters())
        if watched:
            with session_of(fresh, optimizer, [], table=Dead()):
                step(fresh, optimizer, 3)
        else:
            step(fresh, optimizer, 3)
        return fresh.state_dict()

    plain, watched = train(False), train(True)
    assert all(torch.equal(plain[k], watched[k]) for k in plain)


def test_a_strict_watch_raises_our_errors(model, optimizer):
    session = session_of(model, optimizer, [], table=Broken((3, 8)), strict=True)
    with session, pytest.raises(RuntimeError, match="broken kernel"):
        step(model, optimizer)


def test_a_strict_watch_raises_errors_of_a_gradient_too(model, optimizer):
    class OnlyInBackward(HostTable):
        def add(self, index, x):
            if torch._C._current_graph_task_id() != -1:
                raise RuntimeError("broken in backward")
            super().add(index, x)

    session = session_of(model, optimizer, [], table=OnlyInBackward(), strict=True)
    with session, pytest.raises(RuntimeError, match="broken in backward"):
        step(model, optimizer)


class Spiteful(dict):
    def items(self):
        raise RuntimeError("no items for you")


def test_an_output_that_cannot_be_looked_into_switches_off_that_module(watching):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return Spiteful(y=self.fc(x))

    model = nn.Sequential(nn.Linear(4, 4), Odd())
    watch, memory = watching(model, log="output")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            model(torch.ones(1, 4))
            watch.step()
        watch.close()
    assert len([w for w in warned if "no items for you" in str(w.message)]) == 2
    for at in range(3):
        assert set(memory.at(at)) == {"0/output/0", "1.fc/output/0"}
    assert {where for where, _ in memory.counted("failed")} == {"1", "."}


# -- what we feed fails ------------------------------------------------------------------------


class Angry:
    name = "angry"

    def __init__(self, method):
        self.method = method
        self.calls = 0

    def __getattr__(self, name):
        def call(*args):
            if name == self.method:
                self.calls += 1
                raise RuntimeError(f"no {name}")

        return call


@pytest.mark.parametrize("method", ["sites", "sketches", "numbers", "event", "close"])
def test_a_sink_that_raises_is_switched_off_and_the_others_go_on(
    watching, model, optimizer, memory, caplog, method
):
    angry = Angry(method)
    watch, _ = watching(model, optimizer, sinks=[angry, memory])
    for _ in range(3):
        step(model, optimizer)
        watch.log(loss=1.0)
    watch._session.capture.troubles.tell("test", "an event")
    watch.close()
    assert angry.calls == 1
    assert "sink angry failed and is switched off" in caplog.text
    assert len(memory.steps) == 3
    assert len(memory.scalars) == 3
    run = sonde.open(watch.path)
    assert len(run.steps) == 3
    if method != "close":
        assert ("angry", f"RuntimeError('no {method}')") in memory.counted("sink_failed")
        assert "sink_failed" in {w["code"] for w in run.info["warnings"]}


class Slow:
    """A sink that blocks until it is let go."""

    name = "slow"

    def __init__(self):
        self.go = threading.Event()
        self.began = threading.Event()

    def __getattr__(self, name):
        return lambda *args: None

    def sketches(self, batch):
        self.began.set()
        assert self.go.wait(30)


def test_a_sink_that_cannot_keep_up_costs_whole_steps_which_are_counted(model, optimizer, memory):
    slow = Slow()
    with session_of(model, optimizer, [slow, memory], capacity=1) as session:
        step(model, optimizer)
        assert slow.began.wait(30)
        step(model, optimizer, 5)  # the first of these still fits
        slow.go.set()
        assert session.capture.drain.wait(30)
        step(model, optimizer)
    assert session.capture.steps.dropped == 4
    assert [s for s in memory.steps if s[1] == "train"] == [(n, "train") for n in (0, 1, 6)]
    assert memory.at(0).keys() == memory.at(1).keys() == memory.at(6).keys()
    assert [e.step for e in memory.events if e.code == "dropped"] == [2, 3, 4, 5]


def test_a_job_that_cannot_be_done_is_told_and_the_next_is_done(memory):
    class Lost:
        size_bytes = 0
        can_wait = False

        def sketches(self, rows):
            raise RuntimeError("lost on the way")

    drain = Drain([memory])
    window = Window()
    window.touched["train"] = [(0, [0])]
    drain.put(WindowRows({"train": 0}, Lost(), window))
    drain.put(StepEnd(0, "train"))
    assert drain.wait(30)
    drain.close("finished", 10.0)
    assert [e.code for e in memory.events] == ["record_lost"]


# -- threads and processes ---------------------------------------------------------------------


def test_a_model_called_from_several_threads_is_counted_right(watching):
    """Each thread has its own pass: calls are numbered within it, and nothing is lost."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(sonde.attach(self.fc(x), "middle"))

    model = Twice()
    watch, memory = watching(model, log=["output", "output_grad", "attach"])
    barrier = threading.Barrier(4)

    def work():
        for _ in range(25):
            barrier.wait()
            model(torch.ones(3, 4)).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    watch.step()
    watch.close()
    found = memory.at(0)
    assert set(found) == {
        *("./output/0", "./output_grad/0", "fc/output/0", "fc#1/output/0"),
        *("fc/output_grad/0", "fc#1/output_grad/0", "./attach/middle"),
    }
    assert {s.count for s in found.values()} == {4 * 25 * 12}


def test_workers_of_a_data_loader_write_nothing(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    data = TensorDataset(torch.ones(24, 4))

    def collate(samples):
        model(torch.ones(1, 4))  # in the child, where nobody watches
        watch.log(child=1.0)
        return torch.stack([x for (x,) in samples])

    loader = DataLoader(
        data, batch_size=4, num_workers=2, collate_fn=collate, multiprocessing_context="fork"
    )
    for _ in range(2):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
            watch.log(loss=1.0)
    watch.close()
    assert len(memory.steps) == 12
    assert all(memory.at(s)["./output/0"].count == 8 for s in range(12))
    assert all(set(v) == {"loss"} for v in memory.scalars.values())
    run = sonde.open(watch.path)
    assert len(run.steps) == 12
    assert run.damaged == []


def test_a_forked_child_can_train_and_end_without_a_trace(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    model(torch.ones(3, 4)).sum().backward()  # half a step is held while we fork
    child = os.fork()
    if child == 0:
        code = 1
        try:
            step(model, optimizer, 3)
            watch.log(loss=1.0)
            watch.step()
            with watch.phase("child"):
                model(torch.ones(1, 4))
            watch.close()
            sonde.unwatch(model)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    optimizer.step()
    step(model, optimizer)
    watch.close()
    assert memory.steps == [(0, "train"), (1, "train")]
    assert memory.scalars == {}
    assert memory.at(0)["./output/0"].count == 6


# -- other hooks -------------------------------------------------------------------------------


def test_hooks_of_users_keep_their_order_and_their_effect(watching, model, optimizer):
    order = []
    model.first.register_forward_hook(lambda m, a, y: order.append("before ours"))
    model.first.register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    watch, memory = watching(model, optimizer)
    model.first.register_forward_hook(lambda m, a, y: order.append("after ours") or y * 0)
    model.first.register_full_backward_hook(lambda m, gi, go: order.append("backward"))
    y = model(torch.ones(3, 4, requires_grad=True))
    assert torch.equal(y, model.last.bias.expand(3, 2))
    y.sum().backward()
    optimizer.step()
    watch.close()
    assert order == ["before ours", "after ours", "backward"]
    assert memory.at(0)["first/input/0"].max == 2  # as changed by a hook that came before
    assert memory.at(0)["last/input/0"].max == 0


def test_a_hook_of_a_user_that_raises_is_the_users_business(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    handle = model.last.register_forward_hook(lambda m, a, y: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(3, 4))
    handle.remove()
    step(model, optimizer)
    watch.close()
    assert memory.at(0)["./output/0"].count == 6
    assert not any("#" in name for name in memory.at(0))


def test_the_plain_kernel_records_the_same(memory):
    new_memory = type(memory)

    def run(table):
        torch.manual_seed(0)
        fresh = Fragile()
        trainer = torch.optim.Adam(fresh.parameters())
        memory = new_memory()
        with session_of(fresh, trainer, [memory], table=table):
            step(fresh, trainer, 2)
        return memory

    host, plain = run(table_for(torch.device("cpu"))), run(PlainTable(torch.device("cpu")))
    for at in (0, 1):
        assert host.at(at).keys() == plain.at(at).keys()
        for name, sketch in host.at(at).items():
            assert_same(plain.at(at)[name], sketch, name)
