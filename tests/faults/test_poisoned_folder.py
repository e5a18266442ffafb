"""A folder that a stranger shared: no code in it runs, whatever is started in it.

Each file in it has the name of a module that Python, Sonde or a library imports, and leaves a mark
when it is executed.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import httpx
import pytest

from sonde.record import NumberBatch
from sonde.store import Writer, provenance

LIMIT_S = 300
SONDE = Path(sys.executable).with_name("sonde")
NAMES = sorted(
    name
    for name in {
        *sys.stdlib_module_names,
        *metadata.packages_distributions(),
        *("sonde", "sitecustomize", "usercustomize", "duckdb", "pyarrow", "numpy", "uvicorn"),
    }
    if name.isidentifier() and name not in {"sys", "builtins"}
)


@pytest.fixture
def poisoned(tmp_path):
    """A folder with a module for every name, and the file that any of them would write."""
    folder = tmp_path / "poisoned"
    folder.mkdir()
    mark = tmp_path / "executed"
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"import io\nio.open({str(mark)!r}, 'a').write(__name__ + ' ')\n"
        )
    with Writer(folder / "run", compact=False) as writer:
        writer.numbers(NumberBatch(0, "train", ["loss"], [None], [0.5]))
    return folder, mark


def executed(mark: Path) -> str:
    return mark.read_text() if mark.exists() else ""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "."),
        ("show", "run"),
        ("query", "run", "select count(*) from scalars"),
        ("export", "run", "--hdf5", "../out.h5"),
        ("compact", "run"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_command_imports_nothing_from_the_folder_it_is_called_in(poisoned, arguments):
    folder, mark = poisoned
    command = [SONDE, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), timeout=LIMIT_S, capture_output=True, check=False
    )
    assert executed(mark) == ""
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["command", "module"])
def test_the_workers_of_the_explorer_import_nothing_from_the_folder_of_runs(poisoned, how):
    folder, mark = poisoned
    if how == "module":
        _unpoison_what_python_needs(folder)
    start = [str(SONDE)] if how == "command" else [sys.executable, "-m", "sonde"]
    process = subprocess.Popen(
        [*start, "view", ".", "--no-browser", "--no-token", "--port", "0"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        where = next(
            found[0] for line in process.stdout if (found := re.search(r"http://\S+", line))
        )
        with httpx.Client(base_url=where, timeout=LIMIT_S, trust_env=False) as client:
            (run,) = client.get("api/runs").json()["spec"]["runs"]
            assert client.get("api/run", params={"run": run["id"]}).status_code == 200
            assert client.get("api/lines", params={"run": run["id"]}).status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)
    assert executed(mark) == ""


def test_an_empty_entry_in_the_python_path_does_not_reach_the_processes_we_start(
    poisoned, monkeypatch
):
    folder, mark = poisoned
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{path}{os.pathsep}")
    monkeypatch.chdir(folder)
    _compact_in_background(folder)
    assert executed(mark) == ""


def test_a_training_started_in_the_folder_compacts_without_its_modules(poisoned, monkeypatch):
    folder, mark = poisoned
    monkeypatch.chdir(folder)
    _compact_in_background(folder)
    assert executed(mark) == ""


def _compact_in_background(folder: Path) -> None:
    """Run a writer until the process that it starts has merged its segments."""
    with Writer(folder / "compacted", flush_s=0.001) as writer:
        compactor = writer._keeper._compactor
        for step in range(400):
            writer.numbers(NumberBatch(step, "train", ["loss"], [None], [1.0]))
            writer.flush()
            if compactor._process is not None:
                break
        assert compactor._process is not None
        assert compactor._process.wait(LIMIT_S) == 0
    assert list((folder / "compacted" / "numbers").rglob("*.parquet"))


def _unpoison_what_python_needs(folder: Path) -> None:
    """Python imports some modules before the first line of ours when it is started with `-m`."""
    listed = subprocess.run(
        [sys.executable, "-c", "import runpy, pkgutil, sonde, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in {name.partition(".")[0] for name in listed.stdout.split()}:
        (folder / f"{name}.py").unlink(missing_ok=True)


# -- git ------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository as it may come out of an archive, and the file that its commands would write."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    folder, mark = tmp_path / "repository", tmp_path / "executed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    _run("git", "init", "-q", "-b", "main")
    (folder / "file.txt").write_text("a")
    _run("git", "add", "file.txt")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    _run("git", *identity, "commit", "-q", "-m", "a")
    return folder, mark


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)


def _leave_a_mark(folder: Path, mark: Path) -> str:
    script = folder / "poison.sh"
    script.write_text(f"#!/bin/sh\necho run >> '{mark}'\ncat\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("setting", ["core.fsmonitor", "filter.x.clean", "filter.x.process"])
def test_commands_that_a_repository_names_are_not_run(repository, setting):
    folder, mark = repository
    _run("git", "config", setting, _leave_a_mark(folder, mark))
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text("* filter=x\n")
    (folder / "file.txt").write_text("b")
    found = provenance.git()
    assert executed(mark) == ""
    assert found["branch"] == "main"
    assert found["is_dirty"] is (True if setting == "core.fsmonitor" else None)


def test_the_poison_of_the_repository_works(repository):
    folder, mark = repository
    _run("git", "config", "core.fsmonitor", _leave_a_mark(folder, mark))
    _run("git", "status")
    assert executed(mark) != ""


def test_what_git_says_of_an_ordinary_repository_is_kept(repository):
    folder, _ = repository
    assert provenance.git()["is_dirty"] is False
    (folder / "file.txt").write_text("b")
    assert provenance.git()["is_dirty"] is True
    assert len(provenance.git()["commit"]) == 40
