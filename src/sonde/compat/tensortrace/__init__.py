"""A drop-in for TensorTracer: values of variables inside a model's methods, from all ranks.

    from sonde.compat.tensortrace import ModelTracer, stack_padded_tensors

Takes the interface of its document (all options on `ModelTracer`) and that of its last source (a
`Variable` has them). What differs from the original, and why, is in docs/migration.md.
"""

from sonde.compat.tensortrace.callbacks import GlobalVariableResult as GlobalVariableResult
from sonde.compat.tensortrace.callbacks import stack_padded_tensors as stack_padded_tensors
from sonde.compat.tensortrace.callbacks import stack_tensors as stack_tensors
from sonde.compat.tensortrace.h5py_tracer import H5PYSaverCallback as H5PYSaverCallback
from sonde.compat.tensortrace.tracer import ModelTracer as ModelTracer
from sonde.compat.tensortrace.tracer import Variable as Variable
from sonde.compat.tensortrace.tracer import trace_model as trace_model

__all__ = [
    "GlobalVariableResult",
    "H5PYSaverCallback",
    "ModelTracer",
    "Variable",
    "stack_padded_tensors",
    "stack_tensors",
    "trace_model",
]
