"""Capture of a PyTorch model: from what its hooks see to rows, windows and steps.

One `Capture` watches one model and the optimizers that train it. Forward hooks see inputs and
outputs, tensor hooks their gradients, optimizer hooks the parameters, their gradients, what the
optimizer changed, and its state. The state machine is small:

- A *pass* is one outermost call of the model. Calls of a module are numbered within a pass.
- A *step* is one optimizer update. All passes since the last one belong to it.
- `asleep` is what the hooks check first: true when the coming step is not recorded.

No exception of ours leaves a hook: it is reported once, counted, and that spot is switched off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from sonde.capture.drain import Drain, End, Numbers, Part
from sonde.capture.leaves import leaves
from sonde.capture.plan import Plan, Schedule
from sonde.capture.rows import Row, Rows, Spot
from sonde.capture.torch import naming
from sonde.capture.torch.hooks import MAX_SLOTS, GradHook, current_backward, hang, inputs
from sonde.capture.torch.tables import Sketcher, table_for
from sonde.capture.torch.tap import Tap
from sonde.kernels.torch import Unsupported, name_of
from sonde.record import Event, Kind, Level, SiteInfo

MAX_ROWS = 1 << 16
"""Rows per device, 1 GiB: sites beyond are skipped and counted."""


class _Seen:
    """A tensor met in this pass: the row that holds it, the hook on its gradient."""

    __slots__ = ("grad", "ref", "row", "version")

    def __init__(self, x: Tensor, version: int) -> None:
        self.ref = ref(x)
        self.version = version
        self.row: Row | None = None
        self.grad: GradHook | None = None


class Capture:
    """Watches a model; hands what it sees to a drain."""

    def __init__(
        self, model: nn.Module, plan: Plan, schedule: Schedule, drain: Drain, *, step: int = 0
    ) -> None:
        self.plan = plan
        self.drain = drain
        self.step = step
        self.between = True
        self.phase = "train"
        self.on = False
        self.asleep = False
        self.spent_ns = 0
        self.skipped: dict[tuple[str, str], int] = {}
        self.failures: dict[str, str] = {}
        self.dropped_steps = 0
        self.recorded_steps = 0
        self.warn: Callable[[str], None] = lambda _text: None
        self.begun: Callable[[], None] = lambda: None
        self._model = ref(model)
        self._schedule = schedule
        self._recording = False
        self._forced: str | None = None
        self._paused = 0
        self._dropping = False
        self._devices: dict[torch.device, Rows] = {}
        self._taps: dict[int, Tap] = {}
        self._stacks: dict[int, list[tuple[Tap, int]]] = {}
        self._seen: dict[int, _Seen] = {}
        self._handles: list[Any] = []
        self._passed = 0
        self._new_sites: list[SiteInfo] = []
        self._next_id = 0
        self._ids: dict[tuple[Any, ...], int] = {}
        self._lock = threading.RLock()
        self._begin()
        self.scan()

    # -- what the owner asks for ---------------------------------------------------------------

    @property
    def model(self) -> nn.Module | None:
        return self._model()

    @property
    def recording(self) -> bool:
        """Whether the current step is recorded, now."""
        return self._recording and not self._paused

    def reschedule(self, schedule: Schedule) -> None:
        """Use another schedule from the next decision on."""
        self._schedule = schedule
        if self.between:
            self._begin()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside."""
        self._paused += 1
        self._settle()
        try:
            yield
        finally:
            self._paused -= 1
            self._settle()

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Record the passes inside under this phase, whatever the schedule says."""
        before, self._forced = self._forced, name
        self._hand_over()
        self._settle()
        try:
            yield
        finally:
            self._hand_over()
            self._forced = before
            self._settle()

    @property
    def label(self) -> int:
        """The step that something seen now belongs to: the last one until the next pass begins."""
        return max(self.step - 1, 0) if self.between else self.step

    def close(self) -> None:
        """Hand over what is left and take every hook off."""
        self._hand_over()
        self.drain.put(End(self.step))
        self._tell_skipped()
        for tap in self._taps.values():
            tap.remove()
        self._taps.clear()
        self._release_handles()
        self.asleep = True
        self.on = False

    def forked(self) -> None:
        """Be silent for ever: the process is a fork of the one that records."""
        self._paused = 1 << 30
        self._settle()

    def scan(self) -> None:
        """Hook the modules that are new, let go of those that are gone."""
        model = self._model()
        if model is None:
            return
        wanted = self.plan.kinds & {"input", "output", "input_grad", "output_grad"}
        present: set[int] = set()
        root = naming.unwrapped(model)
        for path, module in naming.modules(model):
            selected = self.plan.wants(path, module)
            if not selected and module is not root:
                continue
            present.add(id(module))
            tap = self._taps.get(id(module))
            if tap is None or tap.module() is not module:
                kinds = wanted if selected else frozenset()
                tap = Tap(self, path, module, kinds, is_root=module is root)
                hang(tap, module)
                self._taps[id(module)] = tap
            elif tap.path != path:
                tap.path = path
                tap.spots.clear()
        for key in [k for k in self._taps if k not in present]:
            self._taps.pop(key).remove()

    # -- what hooks report ---------------------------------------------------------------------

    def enter(self, tap: Tap, module: nn.Module, args: Any, kwargs: Any) -> None:
        began = time.perf_counter_ns()
        try:
            if current_backward() != -1:
                return
            stack = self._stack()
            if tap.is_root:
                stack.clear()
            if not stack:
                self._start_pass(module)
            call = tap.next_call(self._passed)
            stack.append((tap, call))
            if self.on and tap.kinds & {"input", "input_grad"}:
                for slot, x in inputs(args, kwargs):
                    self._value(tap, "input", call, slot, x)
                    self._watch_gradient(tap, "input_grad", call, slot, x)
        except Exception as error:
            self._failed(f"{tap.path}/input", error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def leave(self, tap: Tap, module: nn.Module, output: Any) -> None:
        began = time.perf_counter_ns()
        try:
            task = current_backward()
            if task != -1:
                self._recomputed(tap, task, output)
                return
            call = self._pop(tap)
            if call < 0 or not self.on or not tap.kinds & {"output", "output_grad"}:
                return
            for slot, x in leaves(output, Tensor, MAX_SLOTS):
                self._value(tap, "output", call, slot, x)
                self._watch_gradient(tap, "output_grad", call, slot, x)
        except Exception as error:
            self._failed(f"{tap.path}/output", error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def gradient(self, spots: list[Spot], grad: Tensor) -> None:
        if not self._recording and self._forced is None:
            return
        began = time.perf_counter_ns()
        try:
            with self._lock:
                first = None
                for spot in spots:
                    first = self._add(spot, grad, first)
        except Exception as error:
            self._failed(spots[0].site.name, error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def compiled(
        self, tap: Tap, kind: Kind, call: int, slot: str, x: Tensor, *, training: bool
    ) -> None:
        """A tap in compiled code ran: what an eager hook does, without telling tensors apart.

        Generated code writes new values into buffers without any trace of it, so a tensor met
        twice is read twice.
        """
        began = time.perf_counter_ns()
        try:
            with self._lock:
                is_gradient = kind.endswith("_grad")
                if not is_gradient:
                    self._compiled_pass(training)
                if (self._recording or self._forced) if is_gradient else self.on:
                    spot = self.spot(tap.spots, kind, tap.path, call, slot, tap.type)
                    if not spot.off:
                        self._add(spot, x, None)
        except Exception as error:
            self._failed(f"{tap.path}/{kind}", error)
        finally:
            self.spent_ns += time.perf_counter_ns() - began

    def attach(self, x: Tensor, name: str) -> None:
        """A tensor was given a name inside of the forward of a watched module."""
        if self.asleep or not self.on or not isinstance(x, Tensor):
            return
        stack = self._stack()
        if not stack:
            return
        tap, call = stack[-1]
        try:
            self._value(tap, "attach", call, name, x)
            self._watch_gradient(tap, "attach_grad", call, name, x)
        except Exception as error:
            self._failed(f"{tap.path}/attach/{name}", error)

    def number(
        self,
        values: dict[str, Any],
        *,
        step: int | None = None,
        phase: str | None = None,
        module: str | None = None,
    ) -> None:
        """Scalars of this step (or of the given one); tensors are not waited for."""
        label = self.label if step is None else step
        names = list(values)
        self.drain.put(
            Numbers(
                label,
                phase or self._forced or "train",
                names,
                [module] * len(names),
                [_number(v, n) for n, v in values.items()],
            )
        )

    # -- steps ---------------------------------------------------------------------------------

    def end_step(self, *, skipped: bool = False) -> None:
        """The step is over: hand its rows to the drain and decide about the next one."""
        recorded = self._recording
        self._hand_over()
        if recorded:
            self.recorded_steps += 1
            self.drain.put(End(self.step, dropped=self._dropping))
            if self._dropping:
                self.dropped_steps += 1
                self.report("dropped", "the drain could not keep up", level="warning")
            if skipped:
                self.report("update_skipped", "the optimizer was not run: gradients not finite")
        self._dropping = False
        self.step += 1
        self.between = True
        self._stacks.clear()
        self._release_handles()
        self._begin()

    def report(self, code: str, message: str, *, where: str = "", level: Level = "info") -> None:
        """Put an event about the recording into the run."""
        self.drain.put(Event(code, message, where=where, step=self.step, level=level))

    def rows_of(self, device: torch.device) -> Rows:
        """The rows on that device."""
        rows = self._devices.get(device)
        if rows is None:
            rows = self._devices[device] = Rows(table_for(device), MAX_ROWS)
        return rows

    def spot(
        self,
        spots: dict[tuple[Any, ...], Spot],
        kind: Kind,
        path: str,
        call: int,
        slot: str,
        type_: str,
    ) -> Spot:
        """The spot of that site in the current phase."""
        key = (kind, call, slot, self.phase)
        found = spots.get(key)
        if found is None:
            found = spots[key] = Spot(kind, path, call, slot, type_, self.phase)
        return found

    def declare(self, spot: Spot, x: Tensor, rows: Rows) -> None:
        """Give the spot the id of its site with this tensor's dtype; declare it when it is new."""
        spot.dtype = x.dtype
        if spot.rows is not rows:
            spot.rows, spot.own, spot.window = rows, [], -1
        site = spot.site
        key = (site, x.dtype)
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = self._next_id
            self._next_id += 1
            shape = tuple(x.shape)
            self._new_sites.append(SiteInfo(known, site, name_of(x.dtype), shape, spot.module_type))
        spot.id = known

    def skip(self, where: str, reason: str) -> None:
        """Count something that could not be recorded, by place and reason."""
        key = (where, reason)
        if key not in self.skipped:
            self.report("skipped", reason, where=where)
        self.skipped[key] = self.skipped.get(key, 0) + 1

    # -- inside --------------------------------------------------------------------------------

    def _begin(self) -> None:
        try:
            self._recording = bool(self._schedule(self.step))
        except Exception as error:
            self._recording = False
            self._failed("every", error)
        self._settle()

    def _settle(self) -> None:
        """Work out whether hooks have anything to do before the next step ends."""
        idle = not self._recording and self._forced is None
        self.asleep = bool(self._paused) or (idle and not self.between)
        self.on = not self._paused and self._wanted(self.phase)

    def _wanted(self, phase: str) -> bool:
        if self._forced is not None:
            return True
        return self._recording and phase in self.plan.phases

    def _start_pass(self, module: nn.Module) -> None:
        self._begin_pass(self._forced or ("train" if module.training else "eval"))

    def _begin_pass(self, phase: str) -> None:
        self._passed += 1
        if phase != self.phase or any(r.window.has_shared for r in self._devices.values()):
            self._hand_over()
        self.phase = phase
        self._seen.clear()
        if phase == "train" and self.between:
            self.between = False
            if self._recording:
                self.scan()
            self._settle()
            self.begun()
        self._settle()

    def _compiled_pass(self, training: bool) -> None:
        """Compiled code runs no hooks at its entry: a pass is noticed by the first tap in it."""
        phase = self._forced or ("train" if training else "eval")
        if phase != self.phase or (self.between and phase == "train"):
            self._begin_pass(phase)

    def _hand_over(self) -> None:
        """Give the rows filled so far to the drain, or drop the step when it cannot take them."""
        step = self.step if self.phase == "train" else self.label
        for rows in self._devices.values():
            if not rows.window.touched:
                continue
            if self._dropping or not self.drain.has_room:
                rows.discard()
                self._dropping = True
                continue
            filled, window = rows.take()
            sites, self._new_sites = self._new_sites, []
            self.drain.put(Part(step, self.phase, filled, window, sites))
        self._seen.clear()

    def _stack(self) -> list[tuple[Tap, int]]:
        return self._stacks.setdefault(threading.get_ident(), [])

    def _pop(self, tap: Tap) -> int:
        """The call that ends; calls above it never returned (an exception was caught)."""
        stack = self._stack()
        while stack:
            top, call = stack.pop()
            if top is tap:
                return call
        return -1

    def _recomputed(self, tap: Tap, task: int, output: Any) -> None:
        """A recomputation: its values were seen, but reentrant checkpointing has gradients here."""
        if not self.on or "output_grad" not in tap.kinds:
            return
        call = tap.next_redone(task)
        for slot, x in leaves(output, Tensor, MAX_SLOTS):
            self._watch_gradient(tap, "output_grad", call, slot, x)

    def _value(self, tap: Tap, kind: Kind, call: int, slot: str, x: Tensor) -> None:
        if kind not in self.plan.kinds or (kind in ("input", "output") and kind not in tap.kinds):
            return
        if call >= self.plan.max_calls:
            self.skip(tap.path or ".", f"more than max_calls={self.plan.max_calls} calls per pass")
            return
        spot = self.spot(tap.spots, kind, tap.path, call, slot, tap.type)
        if spot.off:
            return
        with self._lock:
            seen = self._look(x)
            seen.row = self._add(spot, x, seen.row)

    def _watch_gradient(self, tap: Tap, kind: Kind, call: int, slot: str, x: Tensor) -> None:
        if kind not in self.plan.kinds or not x.requires_grad or call >= self.plan.max_calls:
            return
        if kind in ("input_grad", "output_grad") and kind not in tap.kinds:
            return
        spot = self.spot(tap.spots, kind, tap.path, call, slot, tap.type)
        if spot.off:
            return
        seen = self._look(x)
        if seen.grad is not None:
            seen.grad.spots.append(spot)
            return
        seen.grad = GradHook(self, spot)
        handle = x.register_hook(seen.grad)
        if x.grad_fn is None:
            self._handles.append(handle)  # a leaf outlives the step: the hook must not

    def _look(self, x: Tensor) -> _Seen:
        """What is known of this very tensor, unchanged since; else a fresh entry."""
        version = -1 if x.is_inference() else x._version
        seen = self._seen.get(id(x))
        if seen is None or seen.version != version or seen.ref() is not x:
            seen = self._seen[id(x)] = _Seen(x, version)
        return seen

    def _add(self, spot: Spot, x: Tensor, row: Row | None) -> Row | None:
        """Sketch `x` at the spot, or point to the row that already holds it; the row that does."""
        rows = self.rows_of(x.device)
        if spot.dtype is not x.dtype or spot.rows is not rows:
            self.declare(spot, x, rows)
        if row is not None and rows.share(spot, row):
            return row
        if x.numel() == 0:
            rows.touch(spot)
            return None
        opened = rows.open_row(spot)
        if opened is None:
            self.skip(spot.site.name, f"more than {rows.limit} rows on {x.device}")
            return None
        table: Sketcher = rows.table  # type: ignore[assignment]
        try:
            table.add(opened.index, x)
        except Unsupported as reason:
            spot.off = True
            rows.undo(spot, opened)
            self.skip(spot.site.name, str(reason))
            return None
        return opened

    def _failed(self, where: str, error: Exception) -> None:
        """Report an error of ours once; training goes on."""
        if self.plan.strict:
            raise error
        if where in self.failures:
            return
        self.failures[where] = repr(error)
        self.report("failed", repr(error), where=where, level="error")
        self.warn(f"recording `{where}` failed and goes on without it: {error!r}")

    def _release_handles(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _tell_skipped(self) -> None:
        for (where, reason), count in self.skipped.items():
            if count > 1:
                self.drain.put(Event("skipped", reason, where=where, step=self.step, count=count))


def _number(value: Any, name: str) -> float | Callable[[], float]:
    """A number now, or later if it has to come from a device. `Any`: what a user logs."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"`{name}` must be one number, got a tensor of shape {tuple(value.shape)}. "
                f"Reduce it first, for example with .mean()."
            )
        if value.device.type == "cpu":
            return float(value.detach())
        kept = value.detach().clone()
        return lambda: float(kept)
    return float(value)
