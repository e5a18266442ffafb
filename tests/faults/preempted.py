"""Trainings in which a signal handler raises at every line of Sonde. Run by `test_preempted.py`.

Usage: preempted.py WHAT FOLDER [MOST [FIRST]]. Interrupts at MOST of the lines, spread evenly from
the FIRST one on; at all by default. Prints JSON: at how many lines a handler raised, at which of
them the exception did not reach the caller, and what was left behind because of it.
"""

from __future__ import annotations

import dis
import faulthandler
import functools
import json
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

import sonde
from sonde.capture import backend

sys.path.append(str(Path(__file__).parents[1] / "capture"))

import numpy_backend

OURS = os.path.dirname(sonde.__file__) + os.sep


class Preempted(Exception):
    """What a program may raise to end its training early."""


# -- handlers: what a program may set, and what they may raise ------------------------------------


def function(signum, frame):
    raise Preempted


def raises_below(signum, frame):
    function(signum, frame)


def restores_the_default(signum, frame):
    signal.signal(signum, signal.SIG_DFL)
    raise Preempted


def times_out(signum, frame):
    raise TimeoutError("took too long")


def fails(signum, frame):
    raise RuntimeError("a worker was killed")


def refuses(signum, frame):
    raise ValueError("no more")


def exits(signum, frame):
    sys.exit(0)


class Handler:
    def __call__(self, signum, frame):
        raise Preempted

    def method(self, signum, frame):
        raise Preempted

    def with_state(self, state, signum, frame):
        raise Preempted


HANDLERS = {
    "a function": function,
    "a function that calls another": raises_below,
    "one that restores the default": restores_the_default,
    "any arguments": lambda *given: function(*given[-2:]),
    "a method": Handler().method,
    "an object": Handler(),
    "a partial": functools.partial(Handler().with_state, "state"),
    "a timeout": times_out,
    "a runtime error": fails,
    "a value error": refuses,
    "sys.exit": exits,
}


# -- what is interrupted --------------------------------------------------------------------------


class Activity:
    """What is done again and again."""

    def __init__(self, folder):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.folder = folder
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.begin()

    def step(self):
        out = self.model(torch.ones(4, 8))
        out.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return out

    def begin(self):
        pass

    def act(self):
        self.step()

    def settle(self):
        """Back to where it can be done once more; then nothing may be left of what was begun."""
        torch.set_grad_enabled(True)
        self.act()
        assert not torch._C._len_torch_dispatch_stack(), "a dispatch mode is left"

    def end(self):
        """Facts that are the same whether anything was interrupted or not."""
        return {}


class Watching(Activity):
    """A watched step, with numbers logged and tensors recorded by hand."""

    options = {"log": "all"}

    def begin(self):
        given = {"every": 1, "dir": self.folder, "name": "run", **self.options}
        self.watch = sonde.watch(self.model, self.optimizer, **given)

    def act(self):
        self.watch.record("out", self.step())
        self.watch.log(loss=1.0)

    def end(self):
        last = self.watch.current_step - 1
        self.watch.close()
        with sonde.open(self.folder / "run", frame="arrow") as run:
            events = run.sql("select code from events where level != 'info'")["code"].to_pylist()
            query = f"select name from records where step = {last} and phase = 'train' order by 1"
            return {"events": events, "recorded": run.sql(query)["name"].to_pylist()}


class Measuring(Watching):
    """Metrics, a reference, attention, a phase of its own, and a block without recording."""

    options = {"reference": "init"}

    def begin(self):
        super().begin()
        self.watch.add_metric("largest", lambda x: x.abs().max(), kind="output")
        self.watch.add_metric("attention")

    def act(self):
        self.step()
        with self.watch.phase("test"), torch.no_grad():
            self.model(torch.ones(4, 8))
        with self.watch.paused(), torch.no_grad():
            self.model(torch.ones(4, 8))


class Arrays(Activity):
    """A model of another framework than torch: a step, a phase of its own, a block without."""

    def begin(self):
        if not any(one.name == "numpy" for one in backend._REGISTERED):
            backend.register(numpy_backend.NumpyBackend())
        self.model = numpy_backend.MLP(4, 4)
        self.optimizer = numpy_backend.SGD(self.model, 0.01)
        self.watch = sonde.watch(self.model, self.optimizer, every=1, dir=self.folder, name="run")

    def act(self):
        self.model.backward(self.model.forward(np.ones((2, 4), np.float32)))
        self.optimizer.step()
        with self.watch.phase("test"):
            self.model.forward(np.ones((2, 4), np.float32))
        with self.watch.paused():
            self.model.forward(np.ones((2, 4), np.float32))

    def settle(self):
        assert self.watch._session.forced_phase is None, "a phase is left"
        assert not self.watch._session._machine.is_silent, "a pause is left"
        super().settle()

    def end(self):
        last = self.watch.current_step - 1
        self.watch.close()
        with sonde.open(self.folder / "run", frame="arrow") as run:
            query = f"select phase, name, count from stats where step = {last} order by all"
            return {"recorded": run.sql(query).to_pylist()}


class Beginning(Activity):
    """A watch from its first step to its end: the graph is traced, hooks are put on and off."""

    n = 0

    def act(self):
        self.n += 1
        name = f"run{self.n}"
        with sonde.watch(self.model, self.optimizer, every=1, dir=self.folder, name=name):
            self.step()

    def settle(self):
        sonde.unwatch(self.model)
        super().settle()
        left = [list(getattr(m, d).values()) for m in self.model.modules() for d in HOOKS]
        assert not any(left), f"hooks are left: {left}"


class Tracing(Activity):
    """Variables of `forward`, what modules return, and gradients."""

    def begin(self):
        paths = ["forward.hidden", "first", "forward.hidden@grad"]
        self.trace = sonde.trace(self.model, paths, always=True)
        self.trace.__enter__()

    def end(self):
        self.trace.__exit__(None, None, None)
        last = self.trace.iteration
        names = [n for n, found in self.trace.results.items() if last in found.iterations]
        return {"traced": sorted(names), "refused": self.trace.refused}


HOOKS = ("_forward_hooks", "_forward_pre_hooks")
ACTIVITIES = {kind.__name__: kind for kind in (Watching, Measuring, Arrays, Beginning, Tracing)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)

    def forward(self, x):
        hidden = sonde.attach(self.first(x).relu(), "hidden")
        one = hidden[None, None]
        heads = torch.nn.functional.scaled_dot_product_attention(one, one, one)[0, 0]
        return self.second(hidden + heads)


# -- the attack -----------------------------------------------------------------------------------


def lines_of(act):
    """The lines of ours that an action goes through, in order, each once."""
    found = {}

    def local(frame, event, _):
        if event == "line":
            found[frame.f_code, frame.f_lineno] = None
        return local

    traced(lambda frame, event, _: local if is_ours(frame) else None, act)
    return [(code, line) for code, line in found if line in interruptible(code)]


@functools.cache
def interruptible(code):
    """The lines of a function at which Python handles signals: those that call or repeat."""
    line, found = code.co_firstlineno, set()
    for one in dis.get_instructions(code):
        line = one.starts_line or line
        if one.opname.startswith(("CALL", "PRECALL", "BEFORE_WITH", "JUMP_BACKWARD", "FOR_ITER")):
            found.add(line)
    return found


def is_ours(frame):
    return frame.f_code.co_filename.startswith(OURS)


def attack(act, code, line, handler):
    """Let the handler raise at that line. Whether it was called, and what came out."""
    fired = []

    def local(frame, event, _):
        if event == "line" and not fired and frame.f_code is code and frame.f_lineno == line:
            fired.append(True)
            signal.signal(signal.SIGUSR1, handler)
            signal.raise_signal(signal.SIGUSR1)
        return local

    raised = None
    try:
        traced(lambda frame, event, _: local if frame.f_code is code else None, act)
    except BaseException as error:
        raised = error
    return bool(fired), raised


def traced(trace, act):
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(None)


def main(what, folder, most=10**6, first=0):
    faulthandler.dump_traceback_later(500, exit=True)
    warnings.simplefilter("ignore")
    unraisable = []
    sys.unraisablehook = lambda told: unraisable.append(str(told.object))
    calm = ACTIVITIES[what](Path(folder) / "calm")
    for _ in range(3):
        calm.act()
    expected = calm.end()
    activity = ACTIVITIES[what](Path(folder) / "interrupted")
    for _ in range(3):
        activity.act()
    swallowed, left, n = [], [], 0
    kinds = list(HANDLERS.items())
    lines = lines_of(activity.act)
    for i, (code, line) in enumerate(lines[int(first) :: -(-len(lines) // int(most))]):
        name, handler = kinds[i % len(kinds)]
        at = f"{code.co_filename.removeprefix(OURS)}:{line} {code.co_qualname}: {name}"
        unraisable.clear()
        is_fired, raised = attack(activity.act, code, line, handler)
        n += is_fired
        if is_fired and raised is None and not unraisable:
            swallowed.append(at)
        try:
            activity.settle()
        except Exception as error:
            left.append(f"{at}: {error!r}")
    for _ in range(3):
        activity.act()
    found = activity.end()
    told = {"n": n, "swallowed": swallowed, "left": left, "found": found, "expected": expected}
    print(json.dumps(told))


main(*sys.argv[1:])
