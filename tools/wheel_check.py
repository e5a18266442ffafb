"""Checks wheels and source distributions as a user meets them: `python tools/wheel_check.py dist`.

A wheel must hold the page and be small. It is installed into an empty environment, with no compiler
and no Node on the path, and there Sonde records, reads and serves a run: without torch, and with
`--torch` with it. `--packages FOLDER` takes all other packages from a folder instead of an index.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SMOKE: Final = Path(__file__).with_name("smoke.py")
MAX_WHEEL_BYTES: Final = 4_000_000
IN_WHEEL: Final = ("sonde/py.typed", "sonde/store/FORMAT.md", "sonde/present/static/index.html")
IN_SDIST: Final = (
    *("pyproject.toml", "setup.py", "README.md", "LICENSE"),
    *("src/sonde/present/static/index.html", "src/sonde/kernels/c/", "src/sonde/capture/c/"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Check wheels and source distributions.")
    parser.add_argument("dist", type=Path, help="folder of wheels and source distributions")
    parser.add_argument("--torch", action="store_true", help="also with torch")
    parser.add_argument("--packages", help="take all other packages from this folder")
    arguments = parser.parse_args()
    found = sorted(arguments.dist.glob("*.whl")) + sorted(arguments.dist.glob("*.tar.gz"))
    if not found:
        raise SystemExit(f"There is no wheel and no source distribution in {arguments.dist}.")
    for path in found:
        if path.suffix == ".whl":
            check_wheel(path)
            for has_torch in (False, True) if arguments.torch else (False,):
                check_installed(path, arguments.packages, has_torch=has_torch)
        else:
            check_sdist(path)
        print(f"{path.name} is well.")


def check_wheel(path: Path) -> None:
    """What must be in it is, and it is not too large."""
    size_bytes = path.stat().st_size
    assert size_bytes < MAX_WHEEL_BYTES, f"{path.name} has {size_bytes:,} bytes"
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        page = wheel.read("sonde/present/static/index.html").decode()
    assert set(IN_WHEEL) <= names, set(IN_WHEEL) - names
    assert any(n.startswith("sonde/present/static/") and n.endswith(".js") for n in names)
    assert "<script" in page
    has_extensions = any(n.endswith((".so", ".pyd")) for n in names)
    is_pure = "-none-any" in path.name
    assert has_extensions != is_pure, f"{path.name}: extensions and its name disagree"


def check_sdist(path: Path) -> None:
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    missing = [wanted for wanted in IN_SDIST if not any(n.startswith(wanted) for n in names)]
    assert missing == [], missing


def check_installed(wheel: Path, packages: str | None, *, has_torch: bool) -> None:
    """Install the wheel where nothing else is, and run the smoke test there."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "environment"
        venv.create(home, with_pip=packages is None)
        binaries = home / ("Scripts" if os.name == "nt" else "bin")
        python = binaries / ("python.exe" if os.name == "nt" else "python")
        # No compiler and no Node: only what the environment brings.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CC", "CXX"))}
        environment = {**kept, "PATH": str(binaries)}
        if packages is None:
            extras = "torch,view" if has_torch else "view"
            command = ["-m", "pip", "install", "--quiet", "--only-binary=:all:"]
            pins = ["-c", ROOT / "constraints.txt"]
            subprocess.run(
                [python, *command, *pins, f"{wheel}[{extras}]"], env=environment, check=True
            )
        else:
            site = next(home.rglob("site-packages"))
            subprocess.run([python, "-m", "zipfile", "-e", wheel, site], check=True)
            environment["PYTHONPATH"] = packages
        mode = "with" if has_torch else "without"
        subprocess.run([python, SMOKE, mode], cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    sys.exit(main())
