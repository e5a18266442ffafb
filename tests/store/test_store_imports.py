"""Reading needs no framework, and `import sonde` needs nothing heavy at all."""

import subprocess
import sys

import made
import pytest

from sonde.store import Writer

HEAVY = ["torch", "jax", "pyarrow", "duckdb", "matplotlib", "starlette", "pandas", "numpy"]

BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError(f"{{name}} is blocked in this test")
sys.meta_path.insert(0, Blocked())
"""


def run_python(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_import_sonde_loads_nothing_heavy():
    done = run_python(f"import sonde, sys; print([m for m in {HEAVY} if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_public_names_of_the_store_are_found_on_first_use():
    done = run_python(
        "import sonde; print(sonde.open.__name__, sonde.Run.__name__, 'open' in dir(sonde))"
    )
    assert done.stdout.split() == ["open_run", "Run", "True"], done.stderr
    assert "no attribute 'nonsense'" in run_python("import sonde; sonde.nonsense").stderr


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run"
    with Writer(path) as writer:
        writer.sites(made.sites(4))
        writer.sketches(made.batch(0))
        writer.numbers(made.loss(0))
    return path


def test_without_a_framework_a_run_is_opened_queried_and_exported(path, tmp_path):
    script = (
        BLOCK.format(names={"torch", "jax", "triton", "transformers"})
        + f"""
import sonde
from sonde.cli import main
run = sonde.open({str(path)!r})
assert len(run.stats()) == 4 and len(run.scalars()) == 1
assert run.histogram("h.0", kind="output").counts.sum() == 1
assert main(["show", {str(path)!r}]) == 0
assert main(["query", {str(path)!r}, "select * from stats"]) == 0
for ending in ("parquet", "csv", "h5"):
    assert main(["export", {str(path)!r}, "--to", {str(tmp_path)!r} + "/x." + ending]) == 0
assert main(["compact", {str(path)!r}]) == 0
"""
    )
    done = run_python(script)
    assert done.returncode == 0, done.stderr


def test_without_pandas_answers_are_arrow_tables(path):
    script = (
        BLOCK.format(names={"pandas", "h5py"})
        + f"""
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "pandas" else real(name, *a)
import pyarrow as pa, sonde
run = sonde.open({str(path)!r})
assert isinstance(run.stats(), pa.Table) and run.stats().num_rows == 4
assert isinstance(run.sites, pa.Table) and isinstance(run.sql("select 1 as x"), pa.Table)
try:
    run.stats(frame="pandas")
except sonde.SondeError as error:
    assert "sonde[pandas]" in str(error)
else:
    raise AssertionError
from sonde.cli import main
assert main(["export", {str(path)!r}, "--to", "/tmp/never.h5"]) == 2
"""
    )
    done = run_python(script)
    assert done.returncode == 0, done.stderr
    assert "sonde[hdf5]" in done.stderr


def test_a_writer_loads_neither_a_query_engine_nor_a_framework(tmp_path):
    script = f"""
import sys
from sonde.store import Writer
Writer({str(tmp_path / "run")!r}).close()
print([m for m in ("torch", "jax", "duckdb", "matplotlib") if m in sys.modules])
"""
    assert run_python(script).stdout.strip() == "[]"
