"""The refined coordinate check: what of a change is due to a module's own update, and what to its
inputs. The engine makes it during the forward; see `sonde.metrics.torch.rcc`."""

from __future__ import annotations

from sonde.compat.torch_module_monitor.monitor import ModuleMonitor


class RefinedCoordinateCheck:
    """Adds the terms of the check to the metrics of each step in which it is asked for."""

    def __init__(self, monitor: ModuleMonitor) -> None:
        if monitor.module is None:
            raise ValueError("Set the module first: `monitor.set_module(model)`.")
        if not monitor.has_reference_module():
            raise ValueError("Set the reference first: `monitor.set_reference_module(model)`.")
        self._monitor = monitor
        self._passes = _SeenPasses()
        monitor.add_coordinate_check(self._passes)

    def refined_coordinate_check(self) -> None:
        """Log the check of this step, after the forward of both modules."""
        if not self._monitor.is_monitoring() or self._monitor.is_off:
            return
        if not self._passes.has_any:
            raise ValueError("The module has not been called since the last check. Call it first.")
        self._passes.has_any = False
        self._monitor.has_rcc = True


class _SeenPasses:
    """The schedule of the check: every recorded step. It is asked when modules are called."""

    has_any = False

    def __call__(self, _step: int) -> bool:
        self.has_any = True
        return True
