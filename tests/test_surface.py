"""The public surface: what a user may name, what importing costs, and what the documents claim."""

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

METHODS = {
    "Watch": [
        *("add_metric", "close", "every", "flush", "is_recording", "log", "metrics", "path"),
        *("current_step", "record"),
        # `branch` keeps D(real) and D(fake) apart: `phase` would take them out of training.
        *("branch", "paused", "phase", "set_reference", "step"),
        # In a checkpoint, as of a model and an optimizer: the run goes on at the right step.
        *("load_state_dict", "state_dict"),
    ],
    "Sketch": [
        *("abs_mean", "count", "empty", "exponents", "finite", "histogram", "infs", "loss"),
        *("max", "max_abs", "mean", "merge", "merged", "min", "min_abs", "neg_infs", "nans"),
        *("norm", "pos_infs", "quantile", "quantiles", "rm4", "rm8", "rms", "sparsity", "stat"),
        *("std", "subnormals", "sum", "sum_4", "sum_abs", "sum_sq", "var", "zeros", "bins"),
    ],
}


def test_public_names_are_these():
    offered = {n for n in dir(sonde) if not n.startswith("_")} - set(MODULES)
    assert sorted(offered) == sorted(NAMES)
    for name in NAMES:
        assert getattr(sonde, name).__module__.startswith("sonde."), name


@pytest.mark.parametrize("name", METHODS)
def test_public_methods_are_these(name):
    assert set(METHODS[name]) <= set(dir(getattr(sonde, name)))


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
