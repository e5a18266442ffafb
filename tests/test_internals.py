"""What torch does not promise to keep is used in one place, and nothing breaks where it is gone."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sonde
import sonde._torch_internals.generating
import sonde._torch_internals.streams
import sonde.capture.torch.session
import sonde.tracing.torch.framework
from sonde._torch_internals import registry
from sonde._torch_internals.streams import raw_stream

SOURCES = Path(sonde.__file__).parent
DOORS = [*(SOURCES / "_torch_internals").glob("*.py"), SOURCES / "tracing/torch/internals.py"]
OTHERS = sorted(set(SOURCES.rglob("*.py")) - set(DOORS))
PYTHONS = {"_fields", "_fields_", "_inline_cache_entries"}
"""Private names of Python, not of torch."""

COMPILES = {
    *("frame_strategy", "compiled_code", "resumed_code", "hook_guards", "constant_function"),
    *("export_flag", "traced_hooks", "tracing_context", "translator", "operator_name"),
    *("saving_hooks", "module_hooks"),
}
"""Names that matter to compiled code: with these a compiled training is run, too."""
NAMES = sorted(registry.NAMES)


# -- one place ---------------------------------------------------------------------------------


def is_private(name):
    return name.startswith("_") and not name.endswith("__")


def torch_names(tree):
    """Names of a module that stand for torch or a part of it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.asname or "torch" for a in node.names if a.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found |= {a.asname or a.name for a in node.names}
    return found


def root_of(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def is_slots(node):
    return [ast.unparse(target) for target in node.targets] == ["__slots__"]


def uses_of_internals(path, known):
    """What a module touches of torch's internals; `known` are the private names of the doors."""
    tree = ast.parse(path.read_text())
    of_torch = torch_names(tree)
    slots = [n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and is_slots(n)]
    own = {id(n) for one in slots for n in ast.walk(one)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [a.name for a in names if a.name.split(".")[0] == "torch"]
                yield from (m for m in modules if any(map(is_private, m.split("."))))
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "torch":
                parts = [*module.split("."), *(a.name for a in names)]
                yield from filter(is_private, parts)
            case ast.Attribute(value=value, attr=name) if is_private(name):
                is_own = isinstance(value, ast.Name) and value.id in ("self", "cls")
                if not is_own and (name in known or root_of(value) in of_torch):
                    yield f".{name}"
            case ast.Constant(value=str(text)) if id(node) not in own:
                if text in known or re.fullmatch(r"torch(\.\w+)*\._\w+(\.\w+)*", text):
                    yield repr(text)
            case ast.FunctionDef(name=name) if name in known and name.startswith("_should"):
                yield f"def {name}"
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            for target in targets:
                if isinstance(target, ast.Attribute) and root_of(target) in of_torch:
                    yield f"changes {ast.unparse(target)}"
        if isinstance(node, ast.Call) and root_of(node.func) in ("setattr", "delattr"):
            yield from (f"changes {name}" for name in {root_of(node.args[0])} & of_torch)


def private_names_of_doors():
    found = set()
    for path in DOORS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and root_of(node) not in ("self", "cls"):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(re.findall(r"^_[a-z]\w*$", node.value))
                if ":" in node.value and " " not in node.value:
                    found.update(node.value.partition(":")[2].split("."))
    return {name for name in found if is_private(name)} - PYTHONS - {"_name", "_parameters"}


def test_only_the_doors_touch_internals():
    known = private_names_of_doors()
    assert {"_forward_hooks", "_version", "_schema", "_current_graph_task_id"} <= known
    found = {
        f"{path.relative_to(SOURCES)}: {use}"
        for path in OTHERS
        for use in uses_of_internals(path, known)
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "from torch._inductor import config",
        "from torch.nn.modules.conv import _ConvNd",
        "import torch\ntorch._C._get_tracing_state()",
        "def f(x):\n    return x._version",
        "def f(module):\n    module._forward_hooks.clear()",
        "def f(module):\n    return getattr(module, '_forward_hooks')",
        "import sys\nsys.modules.get('torch._dynamo.eval_frame')",
        "import torch\ntorch.cuda.CUDAGraph.replay = print",
        "from torch.optim import Optimizer\nsetattr(Optimizer, 'step', print)",
    ],
)
def test_the_check_finds_uses(source, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert list(uses_of_internals(path, private_names_of_doors()))


def test_every_use_is_described():
    for name, entry in registry.NAMES.items():
        assert entry.purpose, name
        assert entry.fallback, name
        assert entry.symbols, name
        assert set(entry.seen) <= {"2.11", "2.13", "2.15"}, name


# -- where a name is gone ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    """What became of trainings without each of the names, by name; and the folder of their runs."""
    folder = tmp_path_factory.mktemp("without")
    cases = [{"name": "control", "symbols": [], "compiles": True}]
    for name, entry in registry.NAMES.items():
        cases.append({"name": name, "symbols": entry.symbols, "compiles": name in COMPILES})
    subprocess.run(
        [sys.executable, Path(__file__).parent / "without_names.py", folder],
        input=json.dumps(cases),
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(SOURCES.parent)},
    )
    found = {
        case["name"]: json.loads((folder / f"{case['name']}.json").read_text()) for case in cases
    }
    return folder, found


def records(path):
    """Everything that was recorded of tensors, by site and step."""
    rows = sonde.open(path).sql("select * from stats", frame="arrow").to_pylist()
    return {(row["name"], row["step"], row["phase"]): row for row in rows}


def left_out(path):
    query = "select message from events where code = 'left_out'"
    return sonde.open(path).sql(query, frame="arrow")["message"].to_pylist()


@pytest.mark.parametrize("name", NAMES)
def test_without_it_training_is_the_same_and_eager_recording_works(name, trainings):
    folder, found = trainings
    result = found[name]
    assert "error" not in result, result.get("error")
    assert result.pop("is_there") is False
    for plain, watched in result.values():
        assert plain == watched
        assert plain in (v[0] for k, v in found["control"].items() if k != "is_there")
    expected, recorded = records(folder / "control"), records(folder / name)
    if name == "clipping":
        expected = {k: v for k, v in expected.items() if "before_clip" not in k[0]}
    if name == "transforms":  # which hide what is inside `vmap`
        hidden = {k for k in expected if re.match(r"mapped/(input|output)", k[0])}
        assert hidden
        expected = {k: v for k, v in expected.items() if k not in hidden}
    assert recorded == expected


@pytest.mark.parametrize("name", [n for n in NAMES if registry.NAMES[n].left_out])
def test_the_run_says_what_is_left_out_without_it(name, trainings):
    folder, _ = trainings
    path = folder / (f"{name}_compiled" if name in COMPILES else name)
    assert [text for text in left_out(path) if registry.NAMES[name].left_out in text]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a stream to be asked for")
def test_no_stream_is_guessed_where_torch_cannot_be_asked():
    with pytest.raises((RuntimeError, AssertionError)):
        raw_stream(0)


def test_nothing_is_left_out_where_all_is_there(trainings):
    folder, _ = trainings
    assert not left_out(folder / "control")
