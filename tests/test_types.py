"""`Any` stands only where no type is known: each file that uses it is listed here, with why."""

import ast
from pathlib import Path

import sonde

SOURCES = Path(sonde.__file__).parent

WHY = {
    "torch's, which it does not promise to keep, or its own signatures of hooks": {
        "_torch_internals/registry.py": 1,
        "capture/torch/backwards.py": 1,
        "capture/torch/compile/graph_passes.py": 1,
        "capture/torch/compile/hooks.py": 2,
        "capture/torch/hooks.py": 1,
        "capture/torch/metrics/attention.py": 21,
        "capture/torch/metrics/replay.py": 7,
        "metrics/torch/fixed.py": 1,
        "tracing/torch/distributed.py": 2,
    },
    "tensors, arrays and modules of whichever framework": {
        "capture/active.py": 6,
        "capture/array_session.py": 2,
        "capture/jax/jaxprs.py": 1,
        "capture/numbers/scalars.py": 1,
        "capture/plan.py": 1,
        "capture/torch/session.py": 2,
        "capture/window.py": 3,
        "graph/torch/taker.py": 2,
        "jax.py": 1,
        "metrics/model.py": 7,
        "tracing/resolving.py": 3,
        "tracing/tracer.py": 1,
        "tracing/values.py": 11,
        "tracing/wiring.py": 1,
    },
    "what users' functions take and return, and what variables of their models hold": {
        "capture/torch/metrics/accumulate.py": 2,
        "capture/torch/metrics/evaluate.py": 1,
        "capture/torch/metrics/reference.py": 2,
        "cli/coord_check.py": 2,
        "store/reading/traces.py": 6,
        "compat/tandv/track/jax.py": 2,
        "compat/tandv/track/stash_values.py": 5,
        "compat/tandv/track/torch.py": 1,
        "compat/tensortrace/callbacks.py": 7,
        "compat/tensortrace/h5py_tracer.py": 3,
        "compat/tensortrace/tracer.py": 1,
        "compat/torch_module_monitor/monitor.py": 1,
        "compat/torchwatcher.py": 5,
        "tracing/callbacks.py": 2,
        "tracing/gathering.py": 2,
        "tracing/hdf5.py": 1,
        "tracing/results.py": 1,
        "tracing/windows.py": 1,
    },
    "JSON of strangers, and of users": {
        "imports/wandb.py": 4,
        "notebook/kernel_server.py": 3,
        "present/guard.py": 4,
        "store/packing.py": 3,
        "store/reading/info.py": 7,
        "store/safetensors.py": 2,
        "store/segments.py": 1,
        "tracing/torch/distributed.py": 3,
        "views/envelope.py": 3,
    },
    "classes of packages that may not be installed, and of other versions of Python": {
        "compat/tandv/track/common.py": 2,
        "compat/tandv/track/tracker.py": 4,
        "compat/tandv/viz/interact.py": 6,
        "compat/tandv/viz/plots.py": 4,
        "compat/torchexplorer/__init__.py": 1,
        "compat/torchexplorer/core.py": 2,
        "logframe/schema.py": 1,
        "logframe/selection.py": 4,
        "notebook/widget.py": 5,
        "present/timeouts.py": 1,
        "store/reading/accessors.py": 2,
        "store/reading/frames.py": 1,
        "tracing/functions/instrumented.py": 1,
        "tracing/functions/monitored.py": 1,
    },
    "fields of several types, given by name; and specs and questions, chosen by name": {
        "plot/distributions.py": 1,
        "plot/source.py": 2,
        "present/server.py": 1,
        "sketch/model.py": 1,
        "store/arrays.py": 2,
        "store/attempts.py": 1,
        "views/answers.py": 3,
    },
}


def uses_of_any(path):
    """How often a file says `Any`, not counting its import."""
    tree = ast.parse(path.read_text())
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))


def test_any_is_used_only_where_no_type_is_known():
    allowed = {}
    for files in WHY.values():
        for file, n in files.items():
            allowed[file] = allowed.get(file, 0) + n
    counted = {p.relative_to(SOURCES).as_posix(): uses_of_any(p) for p in SOURCES.rglob("*.py")}
    more = {file: n for file, n in counted.items() if n > allowed.get(file, 0)}
    assert not more, "use a type: `object` where nothing is asked of the value, a protocol, ..."
    assert not {file for file in allowed if not counted.get(file)}, "take them off the list"
