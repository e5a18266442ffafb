"""Tracing: the values of named variables inside methods, as they change. `sonde.trace` begins one.

Names are looked up on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonde.tracing.callbacks import mean_over as mean_over
    from sonde.tracing.callbacks import stack as stack
    from sonde.tracing.callbacks import stack_padded as stack_padded
    from sonde.tracing.hdf5 import HDF5 as HDF5
    from sonde.tracing.results import Result as Result
    from sonde.tracing.wiring import Trace as Trace

_LAZY = {
    "HDF5": "hdf5",
    "Result": "results",
    "Trace": "wiring",
    "mean_over": "callbacks",
    "stack": "callbacks",
    "stack_padded": "callbacks",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'sonde.tracing' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
