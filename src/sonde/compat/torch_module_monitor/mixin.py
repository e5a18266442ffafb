"""Modules that record something of their own, and how they find their monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sonde.compat.torch_module_monitor.monitor import ModuleMonitor


class MonitorMixin:
    """A base for modules that call their monitor: `class Layer(nn.Module, MonitorMixin)`.

    Works without a monitor, and where `__init__` is never called. A copy has no monitor.
    """

    _monitor_link: _MonitorLink | None = None

    def set_module_monitor(
        self, monitor: ModuleMonitor | None = None, is_reference_module: bool = False
    ) -> None:
        """Belong to this monitor, as part of its module or of its reference."""
        self._monitor_link = None if monitor is None else _MonitorLink(monitor, is_reference_module)

    def get_module_monitor(self) -> ModuleMonitor | ReferenceSide | None:
        """The monitor, or None. Part of a reference gets one that logs nothing."""
        link = self._monitor_link
        monitor = None if link is None else link.monitor()
        if monitor is None or link is None or not link.is_reference:
            return monitor
        return ReferenceSide(monitor)

    @property
    def is_reference_module(self) -> bool:
        """Whether this is part of the reference."""
        return self._monitor_link is not None and self._monitor_link.is_reference

    @property
    def is_monitoring(self) -> bool:
        """Whether what is logged now is recorded."""
        found = self.get_module_monitor()
        return found is not None and found.is_monitoring()


class _MonitorLink:
    """From a module to its monitor. A copy of it leads nowhere, and so does one in a pickle."""

    def __init__(self, monitor: ModuleMonitor | None = None, is_reference: bool = False) -> None:
        self.monitor = (lambda: None) if monitor is None else ref(monitor)
        self.is_reference = is_reference

    def __reduce__(self) -> tuple[type[_MonitorLink], tuple[()]]:
        return (_MonitorLink, ())


class ReferenceSide:
    """A monitor as modules of the reference see it: they show activations, and log nothing."""

    def __init__(self, monitor: ModuleMonitor) -> None:
        self.monitor = monitor

    def is_monitoring(self) -> bool:
        """Whether the step is monitored: a reference may run inside `no_monitor()`."""
        return self.monitor.is_in_step

    def monitor_activations(
        self, module: str | nn.Module, activations: object, is_reference: bool = True
    ) -> None:
        """Keep activations to compare with."""
        self.monitor.monitor_activations(module, activations, is_reference=True)

    def log_scalar(self, key: str, value: object, *_args: object, **_options: object) -> None:
        """Nothing: it would be mixed with what the monitored module logs."""

    def log_scalars(self, monitor_dict: dict[str, object], *_args: object, **_: object) -> None:
        """Nothing, likewise."""

    def log_tensor(self, key: str, tensor: Tensor, *_args: object, **_options: object) -> None:
        """Nothing, likewise."""
