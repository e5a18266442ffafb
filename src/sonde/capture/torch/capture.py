"""Capture of a PyTorch model: from what its hooks see to sketches of steps.

One `Capture` watches one model and the optimizers that train it. Forward hooks see inputs and
outputs, tensor hooks their gradients, optimizer hooks the parameters, their gradients, what the
optimizer changed, and its state. The state machine is small:

- A *pass* is one outermost call of the model, or of a part of it that is called by itself. Calls of
  a module are numbered within a pass. The mode of the model says which phase a pass belongs to.
- A *step* is one optimizer update. All passes since the last one belong to it.
- `asleep` is what the hooks check first: true when the coming step is not recorded.

The gradient of a tensor is that of the loss with respect to it, over all its uses, as
`retain_grad()` would give it; each time that it is computed counts.

No exception of ours leaves a hook: it is reported once, counted, and that spot is switched off.
"""

from __future__ import annotations

import threading
import time
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from sonde.capture.drain import Drain
from sonde.capture.leaves import leaves
from sonde.capture.phases import Phases, is_training
from sonde.capture.plan import Plan, Schedule, schedule_of
from sonde.capture.torch import model_graph, names
from sonde.capture.torch.attaching import attach
from sonde.capture.torch.collector import Collector
from sonde.capture.torch.compile import hooks
from sonde.capture.torch.cuda.graphs import CudaGraphs
from sonde.capture.torch.hooks import MAX_SLOTS, inputs
from sonde.capture.torch.metrics.observer import Observer
from sonde.capture.torch.mistakes import Mistakes
from sonde.capture.torch.modules import MODULE_KINDS, WatchedModules
from sonde.capture.torch.passes import (
    Checkpoints,
    Pass,
    bind,
    current_backward,
    forget_passes,
    is_being_traced,
    is_inside_call_of,
    is_replica,
    native_path,
    phase_of,
    pop,
    settle,
)
from sonde.capture.torch.rows.host import table_for
from sonde.capture.torch.rows.recorder import Recorder, Tables
from sonde.capture.torch.tap import OutputObserver, Tap, TapKey, new_sign
from sonde.capture.troubles import Troubles
from sonde.capture.window import NATIVE_PHASE, Spot


class Capture:
    """Watches a model; hands what it sees to a drain."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        schedule: Schedule,
        drain: Drain,
        *,
        step: int = 0,
        tables: Tables = table_for,
    ) -> None:
        self.sign = new_sign()
        self.plan = plan
        self.drain = drain
        self.lock = threading.RLock()
        self._root = ref(names.unwrapped(model))
        self.native = native_path(self.lock, self._root)
        self.troubles = Troubles(drain, strict=plan.strict)
        self.silence = Mistakes(self._root, self.troubles)
        self.phases = Phases(plan.phases, step, self.troubles.skip, self.troubles.failed)
        self.recorder = Recorder(drain, self.troubles, tables, self.step_of)
        self.collector = Collector(self, self.recorder, self.troubles)
        self.structure: names.ModelStructure = names.ModelStructure(model)
        self.taps = WatchedModules(self, self.structure, self.troubles)
        self.begun: Callable[[], None] = lambda: None
        self.kinds = plan.kinds
        self.observer: Observer | None = None
        self.onlooker: OutputObserver | None = None
        self.asleep = self.is_closed = self._is_bare = False
        self.scanned_step = -1
        self.spent_ns = self.dropped_steps = self.recorded_steps = 0
        self._first_step = step
        self._model = ref(model)
        self._schedule = schedule
        self.always = schedule == schedule_of(1)
        self._may_rest = True
        self._paused = 0
        self.passes_begun = 0
        self.phase = "train"
        self._passes: dict[int, Pass] = {}
        self._checkpoints = Checkpoints()
        self.graphs = CudaGraphs(self)
        self.graph_taker = model_graph.taker(model, drain, self.troubles, plan.max_calls)
        self.begin_step()
        self.taps.start(self.root)

    # -- what the owner asks for ---------------------------------------------------------------

    @property
    def model(self) -> nn.Module | None:
        return self._model()

    @property
    def root(self) -> nn.Module | None:
        """The model without wrappers."""
        return self._root()

    @property
    def recording(self) -> bool:
        """Whether the current step is recorded, now."""
        return self.recorder.capturing is not None or (self.records_training and not self._paused)

    @property
    def step(self) -> int:
        """The step under way, or the next one."""
        return self.phases.step

    @property
    def records_training(self) -> bool:
        return self.phases.records_training

    @property
    def forced_phase(self) -> str | None:
        return self.phases.forced

    def reschedule(self, schedule: Schedule) -> None:
        """Use another schedule: at once between steps, else from the next step on."""
        with self.lock:
            self._schedule = schedule
            self.always = schedule == schedule_of(1)
            if self.phases.is_between:
                self.begin_step()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside."""
        self._paused += 1
        self.settle()
        try:
            yield
        finally:
            self._paused -= 1
            self.settle()

    def close(self) -> None:
        """Hand over what is left and take every hook off."""
        with self.lock:
            if self._is_bare:
                return
            self.is_closed = True
            self.settle()
            self.silence.close()
            self.graphs.close()
            self.taps.remove()
            self.collector.close()
            if self.observer is not None:
                self.observer.end_step()
            self.recorder.hand_over(self.step_of)
            self.recorder.end_phases()
            self.recorder.close()
            self.graph_taker.close(step=self.step)
            self.structure.forget()
            forget_passes(self._passes, self.native)
            self._is_bare = True  # last: who is interrupted before it closes again
            self.troubles.tell_the_rest()

    def observe(self, observer: Observer) -> None:
        """Tell the observer of what is met from now on; it may want kinds that nobody sketches."""
        with self.lock:
            self.observer = self.collector.observer = observer
            self.onlooker = observer if "output" in observer.kinds else None
            self.kinds = self.plan.kinds | observer.kinds
            self.settle()
            self.taps.widen(self.root, follows=observer.follows_calls)

    def forked(self) -> None:
        """Be silent for ever: the process is a fork of the one that records."""
        self.is_closed = self._is_bare = True
        self.settle()

    # -- what hooks report ---------------------------------------------------------------------

    def enter(self, tap: Tap, module: nn.Module, args: Any, kwargs: Any) -> None:
        began = time.perf_counter_ns()
        try:
            with self.lock:
                self._enter(tap, module, args, kwargs)
        except Exception as error:
            self.tap_failed(tap, error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def leave(self, tap: Tap, module: nn.Module, output: Any) -> None:
        began = time.perf_counter_ns()
        try:
            with self.lock:
                self._leave(tap, module, output)
        except Exception as error:
            self.tap_failed(tap, error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def gradient(self, spots: list[Spot], grad: Tensor, returned: bool) -> None:
        if not self.wants(spots[0].phase):
            return
        began = time.perf_counter_ns()
        try:
            with self.lock:
                if self.observer is None and len(spots) == 1 and not returned:
                    self.recorder.add(spots[0], grad)
                else:
                    self.collector.gradient(spots, grad, returned)
        except Exception as error:
            self.troubles.failed(spots[0].site.name, error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def traced(self) -> None:
        self._may_rest = False
        self.taps.share()
        self.wake()

    def hears(self) -> bool:
        """Compiled code runs: whether what its taps see now is recorded."""
        try:
            with self.lock:
                if self.asleep or current_backward() != -1:
                    return not self.asleep
                return self._in_compiled_pass(self.current_pass())
        except Exception as error:
            self.troubles.failed("compiled code", error)
            return False

    def compiled(self, key: TapKey, x: Tensor) -> None:
        """A tap in compiled code ran: what an eager hook does. Which tensors are the same was found
        out when it was compiled: generated code writes into buffers without any trace of it. A part
        of the model that is computed again in backward counts once."""
        self._may_rest = False
        began = time.perf_counter_ns()
        try:
            with self.lock:
                at = self.current_pass()
                if key.is_gradient:
                    wanted = self.recording or self.forced_phase is not None
                else:
                    wanted = current_backward() == -1 and self._in_compiled_pass(at)
                if wanted:
                    self.graph_taker.compiled(step=self.step)
                    self.collector.compiled(key, at, x)
        except Exception as error:
            for tap, _ in key.places():
                self.tap_failed(tap, error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def attach(self, x: Any, name: str) -> None:
        """A tensor was given a name inside of the forward of a watched module."""
        if torch.compiler.is_compiling():
            if isinstance(x, Tensor) and not hooks.is_exporting():
                hooks.attach(self, x, name)
            return
        if not self.asleep and isinstance(x, Tensor):
            attach(self, x, name)

    # -- steps ---------------------------------------------------------------------------------

    def end_step(self) -> None:
        """The step is over: hand its rows to the drain and decide about the next one."""
        with self.lock:
            if self.is_closed:
                return
            if self.recorder.capturing is not None:
                self.recorder.capturing.ends_step = True
                return
            if self.observer is not None:
                self.observer.end_step()
            self.recorder.hand_over(self.step_of)
            if self.records_training:
                if not self.passes_begun and self.plan.kinds & MODULE_KINDS and not self._paused:
                    self.troubles.unseen()  # what was compiled before we came calls no hooks
                self.recorded_steps += 1
                self.silence.end_step()
                if not self.recorder.end("train", self.step):
                    self.dropped_steps += 1
                    self.troubles.tell("dropped", "the drain could not keep up", level="warning")
            self.recorder.end_phases()
            self.phases.end_step()
            self.silence.stepped()
            self.troubles.step = self.step
            self._passes = {i: p for i, p in self._passes.items() if p.stack and i != get_ident()}
            self._checkpoints.clear()
            self.collector.clear()
            if self.native is not None:
                self.native.bound = False
                self.spent_ns, self.native.spent_ns = self.spent_ns + self.native.spent_ns, 0
            self.begin_step()

    def go_to(self, step: int) -> None:
        """The next step is this one: a checkpoint was loaded."""
        with self.lock:
            self.recorder.hand_over(self.step_of)
            self.recorder.end_phases()
            self.phases.go_to(step)
            self.troubles.step = step
            self.silence.guess = None
            self.collector.clear()
            self.begin_step()

    # -- passes --------------------------------------------------------------------------------

    def begin_step(self) -> None:
        self.phases.is_due = False
        try:
            self.phases.is_due = bool(self._schedule(self.step))
        except Exception as error:
            self.troubles.failed("every", error)
        self.settle()
        if self.records_training:
            self.wake()
        elif self._may_rest and self.forced_phase is None and self.passes_begun > 1:
            self.taps.rest()

    def settle(self) -> None:
        """Work out whether hooks have anything to do before the next step ends."""
        idle = not self.recording and self.forced_phase is None
        is_paused = self._paused > 0 and self.recorder.capturing is None
        self.asleep = self.is_closed or is_paused or (idle and not self.phases.is_between)
        is_usual = self.recorder.capturing is None and self.forced_phase is None
        is_live = is_usual and self.recording and not self.asleep
        settle(self.native, self.observer, is_live, self.plan.phases)

    def wake(self) -> None:
        """Have all hooks in place: what comes is to be recorded, or compiled."""
        if self.taps.wake():
            self._may_rest = False
            self.troubles.tell("recompiled", "code compiled while nothing was recorded, again")

    def end_outside(self) -> None:
        """What was recorded outside of training is complete."""
        self.recorder.hand_over(self.step_of)
        self.recorder.end_phases(lambda phase: not is_training(phase))

    def wants(self, phase: str) -> bool:
        """Whether values of that phase are recorded now."""
        if self.recorder.capturing is not None:
            return True
        if self._paused or self.is_closed:
            return False
        return self.phases.wants(phase)

    def step_of(self, phase: str) -> int:
        return self.phases.step_of(phase)

    def current_pass(self) -> Pass:
        here = get_ident()
        found = self._passes.get(here)
        if found is None:
            found = self._passes[here] = Pass()
        return found

    def _start_pass(self, at: Pass, phase: str) -> None:
        root = self._root()
        if phase != self.phase and not (is_training(phase) and is_training(self.phase)):
            self.end_outside()
        elif self.recorder.has_shared:
            self.recorder.hand_over(self.step_of)
        self.phase = phase
        self.passes_begun += 1
        self.taps.mind()
        at.begin(phase)
        bind(self.native, at)
        if is_training(phase) and self.phases.is_between:
            self.phases.begin_step()
            self.settle()
            if self.records_training or self.step == self._first_step:
                self.taps.scan(root)
                self.scanned_step = self.step
            if self.records_training:
                self.begun()
        if not is_training(phase) and self.wants(phase):
            self.wake()  # hooks may rest: the step is not recorded, this pass is
        if self.observer is not None and self.wants(phase):
            self.observer.began_pass(phase)

    def _in_compiled_pass(self, at: Pass) -> bool:
        """Where all of a model is compiled into one, a pass is noticed by the first tap in it."""
        if not at.stack:
            phase = phase_of(self.phases, self._root(), None)
            is_first = self.phases.is_between and is_training(phase)
            if phase != at.phase or phase != self.phase or is_first:
                self._start_pass(at, phase)
        return self.wants(at.phase)

    # -- modules -------------------------------------------------------------------------------

    def _enter(self, tap: Tap, module: nn.Module, args: Any, kwargs: Any) -> None:
        if tap.module() is not module and not is_replica(module):
            return
        at = self.current_pass()
        if current_backward() != -1:
            self._redo(tap, at)
            return
        if not at.stack or (tap.is_root and not is_inside_call_of(module)):
            if isinstance(module, ParametrizationList) or is_being_traced():
                at.stack.append((tap, -1))  # somebody looks at a parametrized weight
                return
            self._may_rest &= tap.is_root  # a part that is called by itself must be noticed
            self._start_pass(at, phase_of(self.phases, self._root(), module))
        call = -1 if at.is_outside else at.next_call(tap)
        at.stack.append((tap, call))
        if call < 0 or not self.wants(at.phase):
            return
        if len(at.stack) == 1 and self.recorder.capturing is None:
            self.graph_taker.begin(tap.path, module, args, kwargs, step=self.step)
        if not torch.is_grad_enabled():
            self._checkpoints.forward(tap, call)
        if self.observer is not None and tap.selected:
            self.observer.entered(tap, call, module, args, kwargs)
        if (tap.input or tap.input_grad) and not self.collector.too_many(tap, call):
            found = inputs(args, kwargs, MAX_SLOTS + 1)
            for slot, x in self.collector.limited(tap, found):
                if tap.input:
                    self.collector.value(tap, at, "input", call, slot, x)
                if tap.input_grad:
                    self.collector.watch_gradient(tap, at, "input_grad", call, slot, x)

    def _leave(self, tap: Tap, module: nn.Module, output: Any) -> None:
        if tap.module() is not module and not is_replica(module):
            return
        at = self._passes.get(get_ident()) or self.current_pass()
        is_redone = current_backward() != -1
        if is_redone:
            if not tap.enters:
                self._redo(tap, at)
            call = pop(at.redone, tap)
        elif tap.enters:
            call = pop(at.stack, tap)
            if not at.stack:
                self.graph_taker.end(output, at.calls, step=self.step)
        elif at.stack or self._started_alone(at, module):
            call = -1 if at.stack and at.stack[-1][1] < 0 else at.next_call(tap)
            if call >= 0 and not torch.is_grad_enabled():
                self._checkpoints.forward(tap, call)
        else:
            return
        wanted = tap.output or tap.output_grad or self.observer is not None
        if call < 0 or not wanted or not self.wants(at.phase):
            return
        collector = self.collector
        if call and collector.too_many(tap, call):
            return
        if isinstance(output, Tensor):
            collector.output(tap, at, call, "0", output, tap.output and not is_redone)
            if at.phase == NATIVE_PHASE:
                tap.pave(call)
        else:
            for slot, x in collector.limited(tap, leaves(output, Tensor, MAX_SLOTS + 1)):
                collector.output(tap, at, call, slot, x, tap.output and not is_redone)
        at.returned.clear()
        if self.native is not None:
            self.native.waiting = False
        if self.observer is not None and tap.selected and not is_redone:
            self.observer.left(tap, call, module, output, at.phase)

    def _started_alone(self, at: Pass, module: nn.Module) -> bool:
        """A module with one hook was called by itself: whether that is a pass of ours."""
        if is_being_traced():
            return False
        self._may_rest = False
        self._start_pass(at, phase_of(self.phases, self._root(), module))
        return True

    def _redo(self, tap: Tap, at: Pass) -> None:
        """A module is called again in backward. Its values were seen, but where the first call was
        without gradients (reentrant checkpointing) those are to be had only now."""
        call = self._checkpoints.backward(tap)
        if call is not None:
            at.redone.append((tap, call))

    def tap_failed(self, tap: Tap, error: Exception) -> None:
        self.troubles.pass_on(error)
        tap.switch_off()
        self.troubles.failed(tap.path or ".", error)
