"""The Makefile installs again when something changes that an installation depends on."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.[ch]") if path.is_file()
)

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


def would_do(folder, *options):
    """What make would do about an environment that is there."""
    command = ["make", "--dry-run", *options, f"VENV={folder}", f"{folder}/ready"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_there_are_sources_of_both_extensions():
    assert {path.split("/")[2] for path in SOURCES} == {"capture", "kernels"}


@pytest.mark.parametrize("changed", [*SOURCES, "pyproject.toml", "setup.py", "constraints.txt"])
def test_a_changed_input_is_installed_again(tmp_path, changed):
    (tmp_path / "ready").touch()
    assert "pip install" not in would_do(tmp_path)
    assert "pip install" in would_do(tmp_path, "--what-if", changed)
