"""The native path: what hooks do in C is what they do in Python, and the unusual is left to it."""

import copy
import ctypes
import gc
import signal
import struct
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from weakref import ref

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.capture import native
from sonde.capture.torch import capture as session
from sonde.capture.torch.capture import Capture
from sonde.record import Site

KINDS = ["output", "output_grad", "param", "param_grad", "update", "optim"]

pytestmark = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
    reason="this torch does not tell C what tensors are, so there is no native path",
)


@contextmanager
def only_python():
    """As if there were no native path."""
    before, session.native_path = session.native_path, lambda _lock, _root: None
    try:
        yield
    finally:
        session.native_path = before


@contextmanager
def counting(name):
    """Paths of the modules for which a method of the capture is called."""
    seen, original = [], getattr(Capture, name)

    def counted(self, of, *args):  # a tap, or spots
        seen.extend(each.path for each in (of if isinstance(of, list) else [of]))
        return original(self, of, *args)

    setattr(Capture, name, counted)
    try:
        yield seen
    finally:
        setattr(Capture, name, original)


# -- modules of all sorts --------------------------------------------------------------------------


class Wrapper(nn.Module):
    """Returns what its child returns: the same tensor, seen twice."""

    def __init__(self, child):
        super().__init__()
        self.child = child

    def forward(self, x):
        return self.child(x)


class Residual(Wrapper):
    def forward(self, x):
        return x + self.child(x)


class Twice(Wrapper):
    """Calls its child twice, and returns two tensors."""

    def forward(self, x):
        return self.child(x), self.child(x * 2)


class First(Wrapper):
    def forward(self, x):
        return self.child(x)[0]


class Function(nn.Module):
    """One operation, by name."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        return FUNCTIONS[self.name](x)


def _in_place(x):
    return (x + 0).relu_()


def _without_gradients(x):
    with torch.no_grad():
        return x * 2


FUNCTIONS = {
    "same": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:, :1].expand(-1, 6),
    "double": lambda x: x.double(),
    "half": lambda x: x.to(torch.bfloat16),
    "back": lambda x: x.float(),
    "in place": _in_place,
    "no gradients": _without_gradients,
    "empty": lambda x: x[:0],
    "detached": lambda x: x.detach() + 0 * x,
    "negative": torch._neg_view,
    "complex": lambda x: torch.complex(x.float(), x.float()),
    "real": lambda x: x.real if x.is_complex() else x * 1,
}


class Checkpointed(Wrapper):
    def forward(self, x):
        return checkpoint(self.child, x, use_reentrant=False)


class Reentrant(Wrapper):
    def forward(self, x):
        return checkpoint(self.child, x, use_reentrant=True)


class Changed(Wrapper):
    """Returns the tensor that its child returned, which is no longer what it was."""

    def forward(self, x):
        x = self.child(x)
        return x if x.is_leaf else x.mul_(2)


class Penalty(Wrapper):
    """Goes back through its child, which is then called again, before it returns."""

    def forward(self, x):
        y = checkpoint(self.child, x, use_reentrant=False)
        if not y.requires_grad or not x.requires_grad:
            return y
        (grad,) = torch.autograd.grad(y.float().square().sum(), x, retain_graph=True)
        return y + grad.detach()


class Cast(nn.Linear):
    """A linear layer that takes whatever comes."""

    def forward(self, x):
        return super().forward((x.real if x.is_complex() else x).float())


def _leaf():
    return st.one_of(
        st.builds(Cast, st.just(6), st.just(6)),
        st.builds(nn.GELU),
        st.builds(nn.Identity),
        st.builds(nn.LayerNorm, st.just(6)).map(lambda m: nn.Sequential(Function("back"), m)),
        st.sampled_from(sorted(set(FUNCTIONS) - {"complex", "real"})).map(Function),
        st.just(None).map(lambda _: nn.Sequential(Function("complex"), Function("real"))),
    )


def _inner(children):
    several = st.lists(children, min_size=1, max_size=3)
    return st.one_of(
        children.map(Wrapper),
        children.map(lambda m: First(Twice(m))),
        several.map(lambda m: nn.Sequential(*m)),
        children.map(Changed),
        children.map(Checkpointed),
        children.map(Reentrant),
    )


def modules():
    return st.recursive(_leaf(), _inner, max_leaves=6)


class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.body = body
        self.last = Cast(6, 6)

    def forward(self, x):
        return self.last(self.body(self.first(x)))


STEPS = ("plain", "two batches", "evaluated", "paused", "interrupted", "frozen", "no gradient")


class Interrupt(Exception):
    pass


def train(model, watch, optimizer, steps):
    """The steps, each of which does something of its own in between. What torch does not allow is
    returned: some checkpoints inside others, some writes to what they return."""
    torch.manual_seed(1)
    errors = []
    for step in steps:
        try:
            forward_and_backward(model, watch, step)
        except RuntimeError as error:
            errors.append(str(error))
        optimizer.step()
        optimizer.zero_grad()
    return errors


def forward_and_backward(model, watch, step):
    x = torch.randn(5, 6, requires_grad=True)
    model.train()
    model.first.weight.requires_grad_(step != "frozen")
    if step == "evaluated":
        model.eval()
        model(x)
        model.train()
    if step == "paused":
        with watch.paused():
            model(x * 3)
    if step == "interrupted":
        handle = model.last.register_forward_pre_hook(_interrupt)
        try:
            with pytest.raises(Interrupt):
                model(x)
        finally:
            handle.remove()
    if step == "no gradient":
        with torch.no_grad():
            model(x)
    for _ in range(2 if step == "two batches" else 1):
        out = model(x)
        if out.requires_grad and out.numel():
            out.float().square().mean().backward()


def _interrupt(*_):
    raise Interrupt


def recorded(model, steps, tmp, log, memory, metric=None):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    watch = sonde.watch(
        model,
        optimizer,
        every=1,
        log=log,
        dir=tmp,
        sinks=[memory],
        phases=("train", "eval"),
    )
    if metric is not None:
        watch.add_metric("mean", lambda x: x.abs().float().mean(), kind=metric)
    errors = train(model, watch, optimizer, steps)
    watch.close()
    return memory, errors


def assert_same(found, expected, steps):
    assert found.steps == expected.steps
    for step in range(len(steps)):
        for phase in ("train", "eval"):
            a, b = found.at(step, phase), expected.at(step, phase)
            assert set(a) == set(b)
            for name, sketch in b.items():
                assert a[name] == sketch, (step, phase, name)
    assert told(found) == told(expected)


def told(memory):
    """Events, but for those that depend on the time that something takes."""
    events = [e for e in memory.events if e.code != "metric_slow"]
    return [(e.code, e.where, e.message, e.count) for e in events]


# As is told where a model fails whenever it is called while recording is not paused.
@pytest.mark.filterwarnings("ignore:no call of the model was seen")
@settings(max_examples=60)
@example(Function("negative"), ["plain"] * 3, KINDS)
@example(Function("transposed"), ["plain"] * 3, KINDS)
@example(Changed(Cast(6, 6)), ["plain"] * 3, KINDS)
@example(Wrapper(Changed(nn.Identity())), ["plain"] * 3, ["output"])
@example(Penalty(nn.Sequential(Cast(6, 6), nn.GELU(), Cast(6, 6))), ["plain"] * 3, KINDS)
@example(Checkpointed(Wrapper(Cast(6, 6))), ["two batches"] * 3, KINDS)
@given(
    body=modules(),
    steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=4),
    log=st.sampled_from([KINDS, ["output"], ["output_grad"], "all"]),
)
def test_what_is_recorded_is_the_same_with_and_without_it(
    tmp_path_factory, new_memory, body, steps, log
):
    tmp = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    model = Model(body)
    twin = copy.deepcopy(model)
    found, errors = recorded(model, steps, tmp, log, new_memory())
    with only_python():
        expected, expected_errors = recorded(twin, steps, tmp, log, new_memory())
    assert errors == expected_errors
    assert_same(found, expected, steps)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.filterwarnings("ignore:no call of the model was seen")
@settings(max_examples=30)
@given(
    body=modules(),
    steps=st.lists(st.sampled_from(STEPS), min_size=2, max_size=4),
    log=st.sampled_from([KINDS, ["output"], ["output_grad"]]),
    metric=st.sampled_from(["output", "output_grad", "input"]),
)
def test_metrics_say_the_same_with_and_without_it(
    tmp_path_factory, new_memory, body, steps, log, metric
):
    tmp = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    model = Model(body)
    twin = copy.deepcopy(model)
    found, errors = recorded(model, steps, tmp, log, new_memory(), metric)
    with only_python():
        expected, expected_errors = recorded(twin, steps, tmp, log, new_memory(), metric)
    assert errors == expected_errors
    assert_same(found, expected, steps)
    assert found.scalars.keys() == expected.scalars.keys()
    for when, numbers in expected.scalars.items():
        assert found.scalars[when] == pytest.approx(numbers, nan_ok=True)


def test_after_the_first_step_usual_modules_do_not_go_through_python(watching):
    model = nn.Sequential(
        nn.Linear(6, 6), nn.GELU(), Residual(nn.Linear(6, 6)), Wrapper(nn.LayerNorm(6))
    )
    watch, memory = watching(model, log=KINDS)
    for step in range(3):
        with counting("enter") as entered, counting("leave") as left, counting("gradient") as grads:
            model(torch.randn(4, 6)).square().mean().backward()
            watch.step()
        if step:
            assert set(entered) == set(left) == {""}  # the model itself begins and ends the pass
            assert grads == []
    watch.close()
    assert memory.at(2)[Site("3.child", "output", 0, "0").name].count == 4 * 6
    assert set(memory.at(2)) == set(memory.at(0))


def test_taps_in_compiled_code_take_it_again_after_steps_of_several_batches(watching):
    """With several, the row that several modules point to is closed, and another one opened."""
    model = nn.Sequential(Wrapper(Wrapper(nn.Linear(6, 6))), nn.GELU())
    watch, memory = watching(model, log=["output"])
    run = torch.compile(model, backend="aot_eager")
    slow, original = [], Capture.compiled

    def compiled(self, key, x):
        slow.append(key)
        return original(self, key, x)

    for batches in (1, 2, 2, 1, 1):
        slow.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Capture, "compiled", compiled)
            for _ in range(batches):
                run(torch.randn(4, 6))
            watch.step()
    watch.close()
    assert len(slow) == 2  # the first, which begins the pass, and what the model itself returns
    for step, batches in enumerate((1, 2, 2, 1, 1)):
        for path in ("0", "0.child", "0.child.child", "1"):
            assert memory.at(step)[Site(path, "output", 0, "0").name].count == batches * 24


@pytest.mark.parametrize("log", [["output"], ["output", "output_grad"]])
def test_a_metric_of_outputs_is_asked_beside_it(watching, log):
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU())
    watch, memory = watching(model, log=log)
    watch.add_metric("largest", lambda x: x.amax(), kind="output")
    for step in range(3):
        with counting("leave") as left, counting("gradient") as grads:
            model(torch.randn(4, 6)).square().mean().backward()
            watch.step()
        assert set(left) == ({""} if step else {"", "0", "1"})
        watch.flush()
        for path in ("0", "1"):
            largest = memory.at(step)[f"{path}/output/0"].max
            assert watch.metrics()[f"activation/{path}/largest"] == pytest.approx(largest)
    assert grads == []
    watch.add_metric("largest", lambda x: x.amax(), kind="output_grad")
    for _ in range(2):
        model(torch.randn(4, 6)).square().mean().backward()
        watch.step()
    numbers = watch.metrics()
    assert sum("largest" in name for name in numbers) == 2 * 3  # of three modules


def test_threads_that_call_one_model_lose_nothing(watching):
    """Replicas of `DataParallel` do so."""
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6))
    watch, memory = watching(model, log=["output", "output_grad"])
    outputs = []

    def call():
        outputs.extend(model(torch.randn(4, 6)).sum() for _ in range(20))

    for _ in range(2):
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sum(outputs).backward()
        outputs.clear()
        watch.step()
    watch.close()
    for step in range(2):
        for path in ("0", "1", "2", ""):
            for kind in ("output", "output_grad"):
                assert memory.at(step)[Site(path, kind, 0, "0").name].count == 4 * 20 * 4 * 6


def test_a_user_can_interrupt_while_another_thread_is_at_it(watching):
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), Wait())
    watch, memory = watching(model, log=["output"])
    for _ in range(2):
        model(torch.randn(4, 6))
        watch.step()
    held, free = threading.Event(), threading.Event()

    def hold():
        with watch._session.capture.lock:
            held.set()
            free.wait(20)

    def interrupt():
        threading.Thread(target=hold).start()
        held.wait(20)
        main = threading.main_thread().ident
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
        threading.Timer(5, free.set).start()

    Wait.act = interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here
    try:
        with pytest.raises(KeyboardInterrupt):
            model(torch.randn(4, 6))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not free.is_set()
    free.set()
    Wait.act = None
    model(torch.randn(4, 6))
    watch.step()
    watch.close()
    assert memory.at(2)[Site("1", "output", 0, "0").name].count in (24, 48)


class Wait(nn.Module):
    """Does something before it returns."""

    act = None

    def forward(self, x):
        if Wait.act is not None:
            Wait.act()
        return x + 1


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
def test_a_watch_that_is_gone_is_heard_of_no_more(tmp_path, memory, compiles):
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU())
    watch = sonde.watch(model, every=1, dir=tmp_path, sinks=[memory])
    run = torch.compile(model, backend="aot_eager") if compiles else model
    for _ in range(3):
        run(torch.randn(4, 6)).square().mean().backward()
        watch.step()
    late = run(torch.randn(4, 6)).square().mean()
    capture = ref(watch._session.capture)
    watch.close()
    n_batches = len(memory.batches)
    del watch
    late.backward()
    del late
    gc.collect()
    run(torch.randn(4, 6)).square().mean().backward()
    gc.collect()
    assert len(memory.batches) == n_batches
    assert compiles or capture() is None  # (a compiler keeps what it has seen)


def test_an_exchange_of_another_version_is_not_used():
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    memory = ctypes.create_string_buffer(struct.pack("<II", 2, 0) + bytes(56))
    name = ctypes.create_string_buffer(b"dlpack_exchange_api")
    capsule = new(ctypes.addressof(memory), ctypes.cast(name, ctypes.c_char_p), None)
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"DLPack 2\.0"):
        native.Native(threading.RLock(), ref(model), torch.Tensor, capsule, int, bool)


PROGRAM = """
import sys

if sys.argv[2] == "without":
    sys.modules["sonde.capture._native"] = None  # as if it had not been compiled

import torch
from torch import nn
import sonde
from sonde.capture import native

assert native.AVAILABLE == (sys.argv[2] == "with")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 1)))
optimizer = torch.optim.Adam(model.parameters())
with sonde.watch(model, optimizer, every=1, dir=sys.argv[1], name=sys.argv[2]):
    for _ in range(3):
        for _ in range(2):
            model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_an_install_without_the_extension_records_the_same(tmp_path):
    runs = []
    for how in ("with", "without"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), how],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        runs.append(sonde.open(tmp_path / how))
    tables = [
        run.sql("select module, kind, step, count, sum, sum_sq, min, max from stats order by all")
        for run in runs
    ]
    assert len(tables[0]) > 60
    assert tables[0].equals(tables[1])
