"""A drop-in for torch-module-monitor: metrics of activations, parameters and gradients by step.

    from sonde.compat.torch_module_monitor import ModuleMonitor

What differs from the original, and why, is in docs/migration.md.
"""

from sonde.compat.torch_module_monitor.attention import (
    monitor_scaled_dot_product_attention as monitor_scaled_dot_product_attention,
)
from sonde.compat.torch_module_monitor.hooks import HooksManager as HooksManager
from sonde.compat.torch_module_monitor.mixin import MonitorMixin as MonitorMixin
from sonde.compat.torch_module_monitor.monitor import ModuleMonitor as ModuleMonitor
from sonde.compat.torch_module_monitor.refined_coordinate_check import (
    RefinedCoordinateCheck as RefinedCoordinateCheck,
)
from sonde.compat.torch_module_monitor.storage import StorageManager as StorageManager

__all__ = ["ModuleMonitor", "MonitorMixin"]
__version__ = "0.1.0"
