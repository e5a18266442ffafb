"""Where a run lies changes nothing: not the folders above it, not its own name.

DuckDB, Polars, Arrow and Spark take folders named `key=value` for a partition and put that value in
place of the column. Every column of every table is tried, above the run and as its name.
"""

import os
import re
import shutil
from pathlib import Path

import duckdb
import pyarrow.dataset as ds
import pytest
import whole

import sonde.store
from sonde.store import open_run
from sonde.store.schemas import TABLES
from sonde.store.writing.compaction import compact

COLUMNS = sorted({column for table in TABLES for column in table.schema.names})

HOSTILE_FOLDERS = [
    *(f"{column}=7" for column in COLUMNS),
    "step=",
    "step=abc",
    "replaced=true",
    "filename=x",
    "phase=train/rank=3",
    "attempt=__HIVE_DEFAULT_PARTITION__",
    "a*b?c[d]",
    'it\'s "quoted"; drop table stats; --',
    "100% $HOME ~ {x}",
    "два 三 \u202e\U0001f9ea",
    " leading and trailing ",
    "new\nline\ttab",
    "back\\slash",
    "a.parquet",
    "s3:",
]
"""Folders in which a run may lie, and names that it may have. One more is one more line."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "run"
    whole.write(path)
    return path


@pytest.fixture(scope="module")
def expected(plain):
    with open_run(plain) as run:
        assert run.damaged == []
        return whole.answers(run)


@pytest.mark.parametrize("folder", HOSTILE_FOLDERS)
def test_a_folder_of_any_name_changes_no_answer(plain, expected, tmp_path, folder):
    path = tmp_path / folder / folder
    shutil.copytree(plain, path, copy_function=os.link)
    with open_run(path) as run:
        assert whole.answers(run) == expected
        assert run.damaged == []


@pytest.mark.parametrize("folder", ["step=100", "rank=8", "it's [1]*?=2", "{a,b}"])
def test_nor_does_it_change_a_locked_run_or_compaction(plain, expected, tmp_path, folder):
    path = tmp_path / folder / "run"
    shutil.copytree(plain, path, copy_function=os.link)
    with open_run(path, locked=True) as run:
        assert whole.answers(run) == expected
    compact(str(path))
    with open_run(path) as run:
        assert whole.answers(run) == expected


def test_the_answers_compared_hold_every_column_of_every_table(plain):
    with open_run(plain, frame="arrow") as run:
        views = {"stats": "records", "sites": "all_sites"}
        for table in TABLES:
            rows = run.sql(f"select * from {views.get(table.name, table.name)}")
            assert rows.num_rows
            assert set(rows.schema.names) >= set(table.schema.names)


@pytest.mark.parametrize("folder", ["step=100", "rank=8", "attempt=5", "phase=1"])
def test_a_run_below_such_a_folder_is_resumed_where_it_ended(tmp_path, folder, unheard):
    import torch

    import sonde

    def train(steps, **options):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with sonde.watch(model, optimizer, dir=tmp_path / folder, name="a=1", **options):
            for _ in range(steps):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()

    train(3, every=1)
    train(2, every=1, resume=True)
    assert "continues at step 3" in unheard.pop()
    with open_run(tmp_path / folder / "a=1") as run:
        assert run.steps == [0, 1, 2, 3, 4]


def recipes():
    """The blocks of Python in FORMAT.md."""
    return re.findall(
        r"```python\n(.*?)```",
        (Path(sonde.store.__file__).parent / "FORMAT.md").read_text(),
        re.DOTALL,
    )


@pytest.mark.parametrize("library", ["duckdb", "polars", "pyarrow", "pandas", "spark"])
def test_the_recipes_of_the_format_turn_partitions_off(tmp_path, plain, library):
    """Each recipe is run as it stands, below a folder that claims to be a column."""
    [recipe] = [text for text in recipes() if library in text]
    path = tmp_path / "step=100" / "rank=9"
    shutil.copytree(plain, path)
    compact(str(path))
    if library == "spark":
        assert '"recursiveFileLookup", "true"' in recipe, "the option that turns discovery off"
        return
    found = {}
    exec(recipe.replace("my-run", str(path)), found)
    steps = found["rows"]["step"]
    steps = steps.to_pylist() if hasattr(steps, "to_pylist") else list(steps)
    right = ds.dataset(path / "stats", format="parquet", partitioning=None).to_table()
    assert sorted(steps) == sorted(right["step"].to_pylist())
    assert len(set(steps)) > 5


def test_stock_readers_give_wrong_steps_without_the_option(tmp_path, plain):
    """Why the recipes say it."""
    path = tmp_path / "step=100"
    shutil.copytree(plain, path)
    with duckdb.connect() as connection:
        files = f"{path}/stats/*/*.parquet"
        rows = connection.sql(f"select distinct step from read_parquet('{files}')").fetchall()
    assert rows == [(100,)]
