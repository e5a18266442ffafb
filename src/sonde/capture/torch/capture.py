"""Capture of a PyTorch model: from what its hooks see to sketches of steps.

One `Capture` watches one model and the optimizers that train it. Forward hooks see inputs and
outputs, tensor hooks their gradients, optimizer hooks the parameters, their gradients, what the
optimizer changed, and its state.

- A *pass* is one outermost call of the model, or of a part of it that is called by itself. Calls of
  a module are numbered within a pass. The mode of the model says which phase a pass belongs to.
- A *step* is one optimizer update. All passes since the last one belong to it: `steps.py`.
- `asleep` is what the hooks check first: true when there is nothing to record or to notice.

The gradient of a tensor is that of the loss with respect to it, over all its uses, as
`retain_grad()` would give it; each time that it is computed counts.

No exception of ours leaves a hook: it is reported once, counted, and that spot is switched off.
"""

from __future__ import annotations

import threading
import time
from _thread import get_ident
from collections.abc import Callable
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from sonde._torch_internals.registry import missing
from sonde._torch_internals.tensors import current_backward
from sonde.capture.drain import Drain
from sonde.capture.leaves import leaves
from sonde.capture.phases import is_training
from sonde.capture.plan import Plan, Schedule
from sonde.capture.steps import WatchEvent, WatchState
from sonde.capture.torch import model_graph, names
from sonde.capture.torch.collector import Collector, Pass, pop
from sonde.capture.torch.compile import hooks
from sonde.capture.torch.hooks import MAX_SLOTS, inputs
from sonde.capture.torch.manual import attach
from sonde.capture.torch.metrics.observer import Observer
from sonde.capture.torch.mistakes import Mistakes
from sonde.capture.torch.modules import WatchedModules
from sonde.capture.torch.passes import (
    Checkpoints,
    bind,
    forget_passes,
    is_being_traced,
    is_inside_call_of,
    is_replica,
    native_path,
    phase_of,
)
from sonde.capture.torch.ranks.placement import RankLayout
from sonde.capture.torch.rows.cuda_graphs import CudaGraphs
from sonde.capture.torch.rows.host import table_for
from sonde.capture.torch.rows.recorder import Recorder, Tables
from sonde.capture.torch.steps import TrainingSteps
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
        self._model = ref(model)
        self._root = ref(names.unwrapped(model))
        self.native = native_path(self.lock, self._root)
        self.troubles = Troubles(drain, strict=plan.strict)
        self.troubles.absent(missing())
        self.silence = Mistakes(self._root, self.troubles)
        self.asleep = self.always = False
        self.steps = TrainingSteps(self, schedule, step)
        self.phases = self.steps.phases
        self.silence.machine = self.steps.machine
        self.recorder = Recorder(drain, self.troubles, tables, self.phases.step_of)
        self.collector = Collector(self, self.recorder, self.troubles)
        self.structure: names.ModelStructure = names.ModelStructure(model)
        self.layout = RankLayout(model) if plan.world_size > 1 else None
        self.collector.layout = self.layout
        self.taps = WatchedModules(self, self.structure, self.troubles)
        self.begun: Callable[[], None] = lambda: None
        self.kinds = plan.kinds
        self.observer: Observer | None = None
        self.onlooker: OutputObserver | None = None
        self.scanned_step = -1
        self.spent_ns = 0
        self._passes: dict[int, Pass] = {}
        self._checkpoints = Checkpoints()
        self.graphs = CudaGraphs(self)
        self.graph_taker = model_graph.taker(model, drain, self.troubles, plan.max_calls)
        self.steps.decide()

    def start(self) -> None:
        """Put hooks on the model. `close` takes them off, also when this was interrupted."""
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
        return self.steps.is_recording

    @property
    def is_closed(self) -> bool:
        """Whether nothing is recorded any more."""
        return self.steps.machine.is_closed

    @property
    def step(self) -> int:
        """The step under way, or the next one."""
        return self.phases.step

    def close(self) -> None:
        """Hand over what is left and take every hook off."""
        machine = self.steps.machine
        with self.lock:
            if machine.watch is WatchState.CLOSED:
                return
            machine.end(WatchEvent.CLOSE)
            self.steps.settle()
            self.silence.close()
            self.graphs.close()
            self.taps.remove()
            self.collector.close()
            if self.observer is not None:
                self.observer.end_step()
            self.recorder.hand_over(self.phases.step_of)
            self.recorder.end_phases()
            self.recorder.close()
            self.graph_taker.close(step=self.step)
            self.structure.forget()
            forget_passes(self._passes, self.native)
            machine.end(WatchEvent.BARE)  # last: who is interrupted before it closes again
            self.troubles.tell_the_rest()

    def observe(self, observer: Observer) -> None:
        """Tell the observer of what is met from now on; it may want kinds that are not sketched."""
        with self.lock:
            self.observer = self.collector.observer = observer
            self.onlooker = observer if "output" in observer.kinds else None
            self.kinds = self.plan.kinds | observer.kinds
            self.steps.settle()
            self.taps.widen(self.root, follows=observer.follows_calls)

    def forked(self) -> None:
        """Be silent for ever: the process is a fork of the one that records."""
        self.steps.machine.end(WatchEvent.FORK)
        self.steps.settle()

    # -- what hooks report ---------------------------------------------------------------------

    def enter(
        self, tap: Tap, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        began = time.perf_counter_ns()
        try:
            with self.lock:
                self._enter(tap, module, args, kwargs)
        except Exception as error:
            self.tap_failed(tap, error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def leave(self, tap: Tap, module: nn.Module, output: object) -> None:
        began = time.perf_counter_ns()
        try:
            with self.lock:
                self._leave(tap, module, output)
        except Exception as error:
            self.tap_failed(tap, error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def gradient(self, spots: list[Spot], grad: Tensor, returned: bool) -> None:
        if not self.steps.wants(spots[0].phase):
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
        self.taps.must_stay = True
        self.taps.share()
        self.steps.wake()

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
        self.taps.must_stay = True
        began = time.perf_counter_ns()
        try:
            with self.lock:
                at = self.current_pass()
                if key.is_gradient:
                    wanted = self.recording or self.phases.forced is not None
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

    def attach(self, x: object, name: str) -> None:
        """A tensor was given a name inside the forward of a watched module."""
        if torch.compiler.is_compiling():
            if isinstance(x, Tensor) and hooks.is_placing():
                hooks.attach(self, x, name)
            return
        if not self.asleep and isinstance(x, Tensor):
            attach(self, x, name)

    # -- passes --------------------------------------------------------------------------------

    def current_pass(self) -> Pass:
        """The pass that this thread is in, or the last one it was in."""
        here = get_ident()
        found = self._passes.get(here)
        if found is None:
            found = self._passes[here] = Pass()
        return found

    def end_passes(self) -> None:
        """A step is over: forget its passes, but for those that run in other threads."""
        self._passes = {i: p for i, p in self._passes.items() if p.stack and i != get_ident()}
        self._checkpoints.clear()
        self.collector.clear()
        if self.native is not None:
            self.native.bound = False
            self.spent_ns, self.native.spent_ns = self.spent_ns + self.native.spent_ns, 0

    def _start_pass(self, at: Pass, phase: str) -> None:
        begins_step = self.steps.begin_pass(phase)
        self.taps.mind()
        at.begin(phase)
        bind(self.native, at)
        if begins_step:
            self._start_step()
        is_wanted = self.steps.wants(phase)
        if is_wanted and not is_training(phase):
            self.steps.wake()  # hooks may rest: the step is not recorded, this pass is
        if is_wanted and self.observer is not None:
            self.observer.began_pass(phase)

    def _start_step(self) -> None:
        if self.steps.begin_step():
            self.taps.scan(self._root())
            self.scanned_step = self.step
        if self.phases.records_training:
            self.begun()

    def _in_compiled_pass(self, at: Pass) -> bool:
        """Where all of a model is compiled into one, a pass is noticed by the first tap in it."""
        if not at.stack:
            phase = phase_of(self.phases, self._root(), None)
            is_first = self.phases.is_between and is_training(phase)
            if phase != at.phase or phase != self.steps.phase or is_first:
                self._start_pass(at, phase)
        return self.steps.wants(at.phase)

    # -- modules -------------------------------------------------------------------------------

    def _enter(
        self, tap: Tap, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        if tap.module() is not module and not is_replica(module):
            return
        at = self.current_pass()
        if current_backward() != -1:
            self._redo(tap, at)
            return
        is_outermost = not at.stack or (tap.is_root and not is_inside_call_of(module))
        if is_outermost and not self._starts_pass(tap, at, module):
            at.stack.append((tap, -1))
            return
        call = -1 if at.is_outside else at.next_call(tap)
        at.stack.append((tap, call))
        if call >= 0 and self.steps.wants(at.phase):
            self._see_call(tap, at, call, module, args, kwargs)

    def _starts_pass(self, tap: Tap, at: Pass, module: nn.Module) -> bool:
        """Begin a pass with this call; False if it is none: a parametrized weight is computed, or a
        compiler traces the model."""
        if isinstance(module, ParametrizationList) or is_being_traced():
            return False
        if not tap.is_root:
            self.taps.must_stay = True  # a part that is called by itself must be noticed
        self._start_pass(at, phase_of(self.phases, self._root(), module))
        return True

    def _see_call(
        self,
        tap: Tap,
        at: Pass,
        call: int,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        """A call begins that is recorded: its inputs, and all that wants to know of calls."""
        if len(at.stack) == 1 and self.recorder.capturing is None:
            self.graph_taker.begin(tap.path, module, args, kwargs, step=self.step)
        if not torch.is_grad_enabled():
            self._checkpoints.forward(tap, call)
        if self.observer is not None and tap.selected:
            self.observer.entered(tap, call, module, args, kwargs)
        is_batch = self.layout is not None and tap.is_root and tap.selected and not tap.input
        if not (tap.input or tap.input_grad or is_batch) or self.collector.too_many(tap, call):
            return
        found = inputs(args, kwargs, MAX_SLOTS + 1)
        if is_batch and is_training(at.phase):
            self.collector.batch(tap, at, call, found)
        self.collector.inputs(tap, at, call, found)

    def _leave(self, tap: Tap, module: nn.Module, output: object) -> None:
        if tap.module() is not module and not is_replica(module):
            return
        at = self._passes.get(get_ident()) or self.current_pass()
        is_redone = current_backward() != -1
        if is_redone:
            if not tap.enters:
                self._redo(tap, at)
            call = pop(at.redone, tap)
        else:
            call = self._ended_call(tap, at, module, output)
        wanted = tap.output or tap.output_grad or self.observer is not None
        if call < 0 or not wanted or not self.steps.wants(at.phase):
            return
        if not call or not self.collector.too_many(tap, call):
            self._see_return(tap, at, call, module, output, is_redone)

    def _ended_call(self, tap: Tap, at: Pass, module: nn.Module, output: object) -> int:
        """The number of the call that ends; -1 if it is none of ours."""
        if tap.enters:
            call = pop(at.stack, tap)
            if not at.stack:
                self.graph_taker.end(output, at.calls, step=self.step)
            return call
        if not at.stack and not self._started_alone(at, module):
            return -1
        call = -1 if at.is_outside else at.next_call(tap)
        if call >= 0 and not torch.is_grad_enabled():
            self._checkpoints.forward(tap, call)
        return call

    def _see_return(
        self, tap: Tap, at: Pass, call: int, module: nn.Module, output: object, is_redone: bool
    ) -> None:
        """A call ends that is recorded: its outputs."""
        collector = self.collector
        with_values = tap.output and not is_redone
        if isinstance(output, Tensor):
            collector.output(tap, at, call, "0", output, with_values)
            if at.phase == NATIVE_PHASE:
                tap.pave(call)
        else:
            for slot, x in collector.limited(tap, leaves(output, Tensor, MAX_SLOTS + 1)):
                collector.output(tap, at, call, slot, x, with_values)
        at.returned.clear()
        if self.native is not None:
            self.native.waiting = False
        if self.observer is not None and tap.selected and not is_redone:
            self.observer.left(tap, call, module, output, at.phase)

    def _started_alone(self, at: Pass, module: nn.Module) -> bool:
        """A module with one hook was called by itself: whether that is a pass of ours."""
        if is_being_traced():
            return False
        self.taps.must_stay = True
        self._start_pass(at, phase_of(self.phases, self._root(), module))
        return True

    def _redo(self, tap: Tap, at: Pass) -> None:
        """A module is called again in backward. Its values were seen, but where the first call was
        without gradients (reentrant checkpointing) those are to be had only now."""
        call = self._checkpoints.backward(tap)
        if call is not None:
            at.redone.append((tap, call))

    def tap_failed(self, tap: Tap, error: Exception) -> None:
        """Report an error of ours, and switch the tap off."""
        self.troubles.pass_on(error)
        tap.switch_off()
        self.troubles.failed(tap.path or ".", error)
