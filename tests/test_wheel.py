"""A wheel built from this tree records, reads and serves where nothing else is installed."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")


def build(tree, dist, **environment):
    """Build a wheel of a tree that holds nothing but its sources."""
    tree.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    for built in [*tree.rglob("*.so"), *tree.rglob("*.egg-info")]:
        shutil.rmtree(built) if built.is_dir() else built.unlink()
    command = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        dist,
        ".",
    ]
    env = {**os.environ, **environment}
    subprocess.run([sys.executable, *command], cwd=tree, env=env, check=True)


def check(dist, *options):
    command = [sys.executable, ROOT / "tools" / "wheel_check.py", dist, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_wheel_works_with_and_without_torch_where_there_is_no_compiler(tmp_path):
    build(tmp_path / "tree", tmp_path / "dist")
    out = check(tmp_path / "dist", "--torch", "--packages", sysconfig.get_path("purelib"))
    assert "watch, read and view work with torch" in out
    assert "watch, read and view work without torch" in out


@pytest.mark.slow
def test_a_wheel_without_extensions_is_for_all_platforms(tmp_path):
    """What Windows gets."""
    build(tmp_path / "tree", tmp_path / "dist", SONDE_NO_EXTENSIONS="1")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    check(tmp_path / "dist", "--packages", sysconfig.get_path("purelib"))
