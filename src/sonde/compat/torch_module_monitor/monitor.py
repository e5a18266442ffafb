"""The monitor: steps that a loop begins and ends, and metrics of what happens in them.

Each monitor is a `sonde.watch` of its module. It writes a run that holds the metrics; further
arguments of `sonde.watch` (`dir`, `name`, `log="default"`, `strict=True`) can be passed to it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self

from torch import Tensor, nn

from sonde._errors import SondeError
from sonde._torch_internals.modules import WRAPPED_CHILDREN
from sonde.capture.torch import names
from sonde.compat import close_when_dropped
from sonde.compat.torch_module_monitor.metric import Aggregation, MonitorMetric
from sonde.compat.torch_module_monitor.mixin import MonitorMixin
from sonde.compat.torch_module_monitor.storage import Metrics, StorageManager, as_number
from sonde.metrics.names import ROOT
from sonde.watching import Watch, watch

_OPTIONS: Final = {
    "log": "attach",
    "hyperparameters": False,
    "final_parameters": False,
    "max_calls": 4096,
}
"""How a module is watched: metrics only, and those of all its calls."""

_KINDS: Final = {"activation": "output", "parameter": "param", "gradient": "param_grad"}
_LATE: Final = 3
"""Steps whose numbers may still be on their way from a device; a watch keeps those of eight."""


def default_format_module_name_fn(name: str) -> str:
    """A module's name without those of wrappers, and the name of the whole model."""
    if name in ("", *WRAPPED_CHILDREN):
        return ROOT
    return re.sub(rf"({'|'.join(WRAPPED_CHILDREN)})\.", "", name)


class _StepWindow:
    """The schedule of the watch: steps are recorded between `begin_step` and `end_step`."""

    is_open = False

    def __call__(self, _step: int) -> bool:
        return self.is_open

    def __repr__(self) -> str:
        return "as `begin_step` says"


class ModuleMonitor:
    """Metrics of the activations, parameters and gradients of a module, at some steps."""

    def __init__(
        self,
        monitor_step_fn: Callable[[int], bool] = lambda step: step % 20 == 0,
        format_module_name_fn: Callable[[str], str] = default_format_module_name_fn,
        excluded_modules_regex: str = r"$.^",
        logger: logging.Logger | None = None,
        cpu_offload: bool = False,
        **watch_options: Any,
    ) -> None:
        self.monitor_step_fn = monitor_step_fn
        self.format_module_name_fn = format_module_name_fn
        self.cpu_offload = cpu_offload
        self.logger = logger or logging.getLogger("ModuleMonitor")
        if logger is None:
            self.logger.addHandler(logging.NullHandler())
        self.module: nn.Module | None = None
        self.reference_module: nn.Module | None = None
        self.current_step: int | None = None
        self.is_in_step = False
        self._is_excluded = re.compile(excluded_modules_regex).match
        self._options = {**_OPTIONS, **watch_options}
        self._window = _StepWindow()
        self._blocks = ExitStack()
        self._silent = 0
        self._watch = Watch.inert()
        self._thread = threading.get_ident()
        self._metrics: dict[tuple[str, str], MonitorMetric] = {}
        self._asked: set[tuple[str, str]] = set()
        self._aggregations: dict[str, Aggregation] = {}
        self._storage = StorageManager(self.logger)
        self._pending: dict[int, tuple[int, bool]] = {}
        self._reference_values: dict[str, Tensor] = {}
        self.has_rcc = False
        """Whether the refined coordinate check was asked for in this step."""

    # -- metrics --------------------------------------------------------------------------------

    def add_activation_metric(
        self,
        metric_name: str,
        metric_fn: Callable[..., object],
        metric_regex: str = ".*",
        metric_aggregation_fn: Callable[..., object] | None = None,
    ) -> None:
        """`metric_fn(activation)` for modules whose name begins as the regex says."""
        self._add("activation", metric_name, metric_fn, metric_regex, metric_aggregation_fn)

    def add_activation_difference_metric(
        self,
        metric_name: str,
        metric_fn: Callable[..., object],
        metric_regex: str = ".*",
        metric_aggregation_fn: Callable[..., object] | None = None,
    ) -> None:
        """`metric_fn(activation, activation_of_the_reference)`, likewise."""
        family = "activation_difference"
        self._add(family, metric_name, metric_fn, metric_regex, metric_aggregation_fn)

    def add_parameter_metric(
        self, metric_name: str, metric_fn: Callable[..., object], metric_regex: str = ".*"
    ) -> None:
        """`metric_fn(parameter)` for parameters whose name begins as the regex says."""
        self._add("parameter", metric_name, metric_fn, metric_regex)

    def add_parameter_difference_metric(
        self, metric_name: str, metric_fn: Callable[..., object], metric_regex: str = ".*"
    ) -> None:
        """`metric_fn(parameter, parameter_of_the_reference)`, likewise."""
        self._add("parameter_difference", metric_name, metric_fn, metric_regex)

    def add_gradient_metric(
        self, metric_name: str, metric_fn: Callable[..., object], metric_regex: str = ".*"
    ) -> None:
        """`metric_fn(gradient)` for parameters whose name begins as the regex says."""
        self._add("gradient", metric_name, metric_fn, metric_regex)

    def _add(
        self,
        family: str,
        name: str,
        fn: Callable[..., object],
        regex: str,
        aggregation_fn: Callable[..., object] | None = None,
    ) -> None:
        if (family, name) in self._metrics:
            raise ValueError(
                f"There is a metric `{name}` of {family} already. Choose another name."
            )
        reduce = self._aggregation(name, aggregation_fn)
        self._metrics[family, name] = MonitorMetric(family, name, fn, re.compile(regex), reduce)
        self._ask()

    def _aggregation(self, name: str, fn: Callable[..., object] | None) -> str | Aggregation:
        return "mean" if fn is None else self._aggregations.setdefault(name, Aggregation(name, fn))

    def _ask(self) -> None:
        """Have the watch ask the metrics that it can ask by now."""
        for key, metric in self._metrics.items():
            kind, _, difference = metric.family.partition("_")
            against = "reference" if difference else None
            has_reference = against is None or self.reference_module is not None
            if self.module is not None and has_reference and key not in self._asked:
                self._asked.add(key)
                where = metric.where(self._is_excluded, self.format_module_name_fn)
                self._watch.add_metric(
                    metric.name,
                    metric.fn,
                    kind=_KINDS[kind],
                    where=where,
                    reduce=metric.reduce,
                    against=against,
                )

    # -- modules --------------------------------------------------------------------------------

    def set_module(self, module: nn.Module) -> None:
        """Monitor this module, from now on."""
        if module is None:
            raise ValueError("`module` must be a torch.nn.Module, got None.")
        if self.module is not None:
            raise ValueError("A module has been set already. Make another monitor for this one.")
        self._watch = watch(module, every=self._window, **self._options)
        self.module = module
        self._blocks.enter_context(self._watch.paused())
        for kind in ("param", "param_grad"):
            self._watch.record_parameters(kind)  # only when the loop says so
        self._link(module, is_reference=False)
        self._ask()

    def set_reference_module(self, module: nn.Module | None) -> None:
        """Compare with this module, which has the same structure; None removes it."""
        if self.module is None:
            raise ValueError("Set the monitored module before its reference: `set_module(model)`.")
        self.remove_reference_module()
        if module is None:
            return
        try:
            self._watch.set_reference(module)
        except SondeError as error:
            raise ValueError(str(error)) from error
        self.reference_module = module
        self._link(module, is_reference=True)
        self._ask()

    def has_reference_module(self) -> bool:
        """Whether there is a reference."""
        return self.reference_module is not None

    def remove_reference_module(self) -> None:
        """Compare no more."""
        if self.reference_module is not None:
            for module in self.reference_module.modules():
                if isinstance(module, MonitorMixin):
                    module.set_module_monitor(None)
            self._watch.set_reference(None)
        self.reference_module = None
        self._reference_values.clear()

    def _link(self, root: nn.Module, *, is_reference: bool) -> None:
        for path, module in names.modules(root):
            name = self.format_module_name_fn(path)
            if isinstance(module, MonitorMixin) and not self._excludes(name):
                module.set_module_monitor(self, is_reference)

    # -- steps ----------------------------------------------------------------------------------

    def is_step_monitored(self, step: int) -> bool:
        """Whether this step is one of those to monitor."""
        return bool(self.monitor_step_fn(step))

    def is_monitoring(self) -> bool:
        """Whether what happens now is recorded."""
        return self.is_in_step and not self._silent

    @property
    def is_off(self) -> bool:
        """Whether nothing is ever recorded: `SONDE=off`."""
        return self._watch.path is None

    def begin_step(self, step: int) -> bool:
        """Begin a step, before its forward. Returns whether it is monitored.

        Beginning a step twice loses nothing of it.
        """
        if self.current_step is not None and step < self.current_step:
            raise ValueError(f"Step {step} cannot come after step {self.current_step}.")
        is_monitored = self.is_step_monitored(step)
        if is_monitored and self.module is None:
            raise ValueError("There is no module to monitor. Call `set_module(model)` first.")
        if not self.is_in_step or step != self.current_step:
            self.end_step()
            self.current_step = step
            if is_monitored:
                self._open(step)
        return is_monitored

    def _open(self, step: int) -> None:
        self._storage.create_step_entry(step)
        self._blocks.close()
        self._window.is_open = self.is_in_step = True
        if step > (self._watch.current_step or 0):
            self._watch.current_step = step
        self._watch.every = self._window
        # Every pass counts, in whichever mode the module is.
        self._blocks.enter_context(self._watch.phase("train"))

    @contextmanager
    def no_monitor(self) -> Iterator[None]:
        """Record nothing inside the block. A reference that runs in it is compared with."""
        self._silent += 1
        try:
            with self._watch.paused():
                yield
        finally:
            self._silent -= 1

    def after_micro_batch(self) -> None:
        """End a micro-batch: the next one has reference activations of its own."""
        self._reference_values.clear()

    def end_step(self) -> None:
        """End the step, if it is monitored: its metrics are complete."""
        if not self.is_in_step:
            return
        assert self.current_step is not None
        self._reference_values.clear()
        self._blocks.close()
        self._window.is_open = self.is_in_step = False
        self._pending[self.current_step] = (self._watch.current_step or 0, self.has_rcc)
        self.has_rcc = False
        self._watch.step()
        self._blocks.enter_context(self._watch.paused())
        self._settle(keep=_LATE)

    @property
    def storage(self) -> StorageManager:
        """All metrics so far. Waits for those that are still on a device."""
        self._settle()
        return self._storage

    def get_step_metrics(self) -> Metrics:
        """The metrics of the current step, by key."""
        return {} if self.current_step is None else self.storage.get_step_metrics(self.current_step)

    def get_all_metrics(self) -> dict[int, Metrics]:
        """The metrics of all steps."""
        return self.storage.get_all_metrics()

    def _settle(self, keep: int = 0) -> None:
        """Fetch the numbers of steps that have ended, but for the last few."""
        for step in list(self._pending)[: len(self._pending) - keep]:
            number, has_rcc = self._pending.pop(step)
            found = self._watch.metrics(number)
            self._storage.create_step_entry(step)
            kept = {k: v for k, v in found.items() if has_rcc or not k.startswith("RCC ")}
            renamed = {self._renamed(key): value for key, value in kept.items()}
            self._storage.get_step_metrics(step).update(renamed)
            self._storage.tell(step)

    def _renamed(self, key: str) -> str:
        """The key of the original: suffixes without a slash, names as they are formatted."""
        for aggregation in self._aggregations.values():
            for suffix in aggregation.suffixes:
                if key.endswith(f"{aggregation.name}/{suffix}"):
                    key = key.removesuffix(f"/{suffix}") + suffix
        if self.format_module_name_fn is default_format_module_name_fn:
            return key
        family, _, rest = key.partition("/")
        module, _, metric = rest.partition("/")
        if family not in ("activation", "activation_difference") or not metric:
            return key
        return f"{family}/{self.format_module_name_fn('' if module == ROOT else module)}/{metric}"

    # -- what the loop and modules tell -----------------------------------------------------------

    def monitor_parameters(self) -> None:
        """Ask the metrics of parameters about these as they are now."""
        if self.is_monitoring():
            self._watch.record_parameters("param")

    def monitor_gradients(self, before_clip: bool = False) -> None:
        """Ask the metrics of gradients about these as they are now."""
        if not self.is_monitoring():
            return
        assert self.module is not None
        for name, parameter in self.module.named_parameters():
            if parameter.grad is None:
                self.logger.warning("Step %s: `%s` has no gradient.", self.current_step, name)
        stage = "before_clip" if before_clip else "final"
        self._watch.record_parameters("param_grad", stage=stage)

    def monitor_activations(
        self, module: str | nn.Module, activations: object, is_reference: bool = False
    ) -> None:
        """Ask the metrics of activations about a tensor, under a name of a module or of its own."""
        is_heard = self.is_in_step and (is_reference or not self._silent)
        if not is_heard or not isinstance(activations, Tensor):
            return
        name = self.name_of(module, is_reference=is_reference)
        if self._excludes(name):
            return
        if is_reference:
            self._reference_values[name] = activations.detach().clone()
            return
        other = self._reference_values.get(name)
        for metric in self._metrics.values():
            if metric.family.startswith("activation") and metric.regex.match(name):
                given = (activations,) if metric.family == "activation" else (activations, other)
                if given[-1] is None:
                    self.logger.warning("Step %s: no reference of `%s`.", self.current_step, name)
                    continue
                key = f"{metric.family}/{name}/{metric.name}"
                self._watch.measure(key, metric.fn, *given, reduce=metric.reduce)

    def log_scalar(
        self,
        key: str,
        value: object,
        aggregation_fn: Callable[..., object] | None = None,
        force: bool = False,
    ) -> None:
        """Log a number in a monitored step, or in any step if `force`."""
        is_one = isinstance(value, Tensor) and value.numel() == 1
        given = value if is_one else as_number(key, value)
        if self.is_monitoring() and aggregation_fn is not None:
            self._watch.measure(key, given, reduce=self._aggregation(key, aggregation_fn))
        elif self.is_monitoring():
            self._watch.log({key: given}, step=self._watch.current_step, reduce="mean")
        elif force:
            step = self.current_step or 0
            self._watch.log({key: given}, step=step, reduce="mean")
            self._pending.setdefault(step, (step, False))

    def log_scalars(self, monitor_dict: Mapping[str, object], force: bool = False) -> None:
        """Log several numbers."""
        for key, value in monitor_dict.items():
            self.log_scalar(key, value, force=force)

    def log_tensor(
        self,
        key: str,
        tensor: Tensor,
        aggregation_fn: Callable[..., object] | None = None,
    ) -> None:
        """Log the elements of a tensor in a monitored step: their mean, or what a function says."""
        if self.is_monitoring():
            self._watch.measure(key, tensor, reduce=self._aggregation(key, aggregation_fn))

    def measure(self, key: str, value: object, *, reduce: object = "mean") -> None:
        """Log numbers in a monitored step, reduced as `sonde.Watch.measure` can."""
        if self.is_monitoring():
            self._watch.measure(key, value, reduce=reduce)

    def add_coordinate_check(self, every: Callable[[int], bool]) -> None:
        """Make the refined coordinate check of all modules at steps that are recorded."""
        is_excluded, format_name = self._is_excluded, self.format_module_name_fn
        self._watch.add_metric(
            "rcc", where=lambda path, _module: is_excluded(format_name(path)) is None, every=every
        )

    def name_of(self, module: str | nn.Module, *, is_reference: bool = False) -> str:
        """The name of a module of the monitored module, or of its reference."""
        if isinstance(module, str):
            return module
        root = self.reference_module if is_reference else self.module
        for path, found in names.modules(root) if root is not None else ():
            if found is module:
                return self.format_module_name_fn(path)
        raise ValueError(f"This {type(module).__name__} is no part of the monitored module.")

    def _excludes(self, name: str) -> bool:
        return self._is_excluded(name) is not None

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Take every hook off, fetch the last metrics and close the run. Safe to call twice."""
        self.end_step()
        self._settle()
        self._blocks.close()
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # half made
            close_when_dropped(self._watch.close, self._thread)
