"""The public surface: what a user may name, what importing costs, and what the documents claim."""

import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sonde

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "jax", "pyarrow", "duckdb", "matplotlib", "starlette", "pandas", "triton")

NAMES = [
    "Run",
    "RunError",
    "Sink",  # the base class of trackers and files that a user adds: `watch(sinks=[...])`
    "Sketch",
    "SondeError",
    "SondeWarning",
    "Watch",
    "attach",
    "attention",
    # Two runs side by side: as basic as `open`.
    "compare",
    "coord_check",
    "is_watching",
    "log",
    "metric",
    "open",
    # Files of Track & Visualize, as `sonde.open` for runs.
    "read_logframe",
    "show",  # a run in a notebook: design.md names it beside `open`
    "statistic",  # beside `metric`: adds a statistic to frames, SQL, sinks and the page at once
    "trace",
    "trace_once",
    "unwatch",
    "watch",
]
"""Adding a name is a promise: argue for it where it is added, and change this list."""

MODULES = [
    "TYPE_CHECKING",
    "import_module",
    *(m.name for m in pkgutil.iter_modules(sonde.__path__)),
]
"""What `dir` shows of how the package is made."""

MEMBERS = {
    "Run": {
        "close": "",
        "drift": "",
        "damaged": None,
        "exponents": "site kind step **where",
        "graph": None,
        "histogram": "site kind step edges **where",
        "info": None,
        "merge": "site_pattern kind steps phase rank by stage missing",
        "metrics": "name module steps phase rank all_attempts missing frame",
        "plot": None,
        "progress": None,
        "scalars": "name steps phase rank all_attempts missing frame",
        "sites": None,
        "sketch": "site kind step call slot phase rank stage",
        "sql": "query params frame",
        "stats": "site_pattern kind stat steps phase rank stage all_attempts missing frame",
        "status": None,
        "steps": None,
        "to_hdf5": "path",
        "to_html": "path **options",
        "to_logframe": "**options",
        "trace": "path steps phase rank call",
        "traces": None,
        "view": None,
        # For parts of Sonde: views and the command line.
        "catalogue": "",
        "examine": "",
    },
    "Watch": {
        "add_metric": "name fn kind where reduce every against",
        # `branch` keeps D(real) and D(fake) apart: `phase` would take them out of training.
        "branch": "name",
        "close": "reason timeout_s",
        "current_step": None,
        "every": None,
        "flush": "timeout_s",
        "is_recording": None,
        # In a checkpoint, as of a model and an optimizer: the run goes on at the right step.
        "load_state_dict": "state",
        "log": "values step reduce **more",
        "metrics": "step stats kinds include prefix",
        "path": None,
        "paused": "",
        "phase": "name step",
        "record": "name tensor",
        "set_reference": "model device run",
        "state_dict": "",
        "step": "*trees **scalars",
        # Where a loop says when, and of what: drop-ins for tools with a loop of their own.
        "measure": "name value *tensors reduce",
        "record_parameters": "kind stage",
        # Where training is a function: JAX.
        "intercept": "function *args **kwargs",
        "optimizer": "tx",
        "wrap": "function",
        # For parts of Sonde: what is watched, forks, `SONDE=off`.
        "forked": "",
        "inert": "",
        "watches": "model",
    },
}
"""Public members: the parameters of a method, None for a property. Exactly these."""

SKETCH = [
    *("abs_mean", "count", "empty", "exponents", "finite", "histogram", "infs", "loss"),
    *("max", "max_abs", "mean", "merge", "merged", "min", "min_abs", "neg_infs", "nans"),
    *("norm", "pos_infs", "quantile", "quantiles", "rm4", "rm8", "rms", "sparsity", "stat"),
    *("std", "subnormals", "sum", "sum_4", "sum_abs", "sum_sq", "var", "zeros", "bins"),
]


def parameters(member):
    """The parameters of a method but for the first, None for what is no method."""
    function = getattr(member, "__func__", member)
    if not callable(function):
        return None
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(function).parameters.values()
    return " ".join(f"{marks.get(p.kind, '')}{p.name}" for p in list(found)[1:])


def test_public_names_are_these():
    offered = {n for n in dir(sonde) if not n.startswith("_")} - set(MODULES)
    assert sorted(offered) == sorted(NAMES)
    for name in NAMES:
        assert getattr(sonde, name).__module__.startswith("sonde."), name


@pytest.mark.parametrize("name", MEMBERS)
def test_public_members_are_exactly_these(name):
    offered = getattr(sonde, name)
    names = [n for n in dir(offered) if not n.startswith("_")]
    assert {n: parameters(inspect.getattr_static(offered, n)) for n in names} == MEMBERS[name]


def test_a_sketch_has_these_statistics():
    assert set(SKETCH) <= set(dir(sonde.Sketch))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'sonde' has no attribute 'wach'"):
        _ = sonde.wach


def test_importing_loads_nothing_heavy():
    code = f"""
import sys
import sonde
loaded = [m for m in {HEAVY!r} if m in sys.modules]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_does_nothing():
    """No thread, no file, no patch, no handler."""
    code = """
import sys, threading
opened = []
sys.addaudithook(lambda event, args: opened.append(args) if event == "open" else None)
threads = threading.active_count()
import sonde
written = [a for a in opened if a[1] is not None and set(str(a[1])) & set("wax+")]
written = [a for a in written if "__pycache__" not in str(a[0])]
assert not written, written
assert threading.active_count() == threads
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reading_needs_no_framework(tmp_path):
    """Everything but `watch` works where torch cannot be imported."""
    code = """
import sys
for name in ("torch", "jax", "triton"):
    sys.modules[name] = None
import sonde
for name in ("Run", "Sketch", "Sink", "attach", "log", "metric", "open", "unwatch"):
    getattr(sonde, name)
assert sonde.attach("x", "name") == "x"
assert not sonde.is_watching()
try:
    sonde.watch(object())
except sonde.SondeError as error:
    assert "neither torch nor flax has been imported" in str(error)
else:
    raise AssertionError("watched without torch")
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def sources():
    return sorted(p for p in (ROOT / "src").rglob("*.py") if "__pycache__" not in p.parts)


def test_no_module_is_longer_than_500_lines():
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources()}
    assert {p: n for p, n in lengths.items() if n > 500} == {}


def test_every_module_says_what_it_is():
    silent = [
        str(p.relative_to(ROOT))
        for p in sources()
        if p.read_text().strip() and not p.read_text().lstrip().startswith(('"""', 'r"""'))
    ]
    assert silent == []


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_documents_name_exist(document):
    path = ROOT / document
    if not path.exists():
        pytest.skip(f"{document} is not written yet")
    text = path.read_text()
    named = set(re.findall(r"`([\w./-]+\.(?:py|md|toml|c|cu|txt|csv|svg|png|json))`", text))
    named |= set(re.findall(r"\]\((?!https?:|#)([\w./-]+)\)", text))
    there = {f"/{p.relative_to(ROOT)}" for p in ROOT.rglob("*") if "node_modules" not in p.parts}
    assert [n for n in sorted(named) if not any(t.endswith(f"/{n}") for t in there)] == []


def test_tests_that_the_table_of_correctness_names_exist():
    text = (ROOT / "docs" / "correctness.md").read_text()
    sources = "".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", text))
    assert len(named) > 10
    assert [n for n in sorted(named) if f"def {n}(" not in sources] == []
