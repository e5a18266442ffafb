"""`sonde info`: what this installation is, for a look and for bug reports."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final, TypedDict

from sonde._version import VERSION

HELP = "show versions, C extensions, GPUs and where runs are"
GROUP = "Set up"
EXAMPLES = ("sonde info", "sonde info --json")

_PACKAGES: Final = (
    *("numpy", "pyarrow", "duckdb", "torch", "jax", "flax", "pandas", "polars"),
    *("starlette", "matplotlib", "anywidget", "h5py"),
)
_EXTENSIONS: Final = {
    "sonde.kernels._c": "sketches of CPU tensors in C",
    "sonde.capture._native": "native path of hooks",
}
_GPU_TIMEOUT_S: Final = 10


class Installation(TypedDict):
    """What `sonde info --json` prints."""

    sonde: str
    python: str
    platform: str
    location: str
    packages: dict[str, str | None]
    extensions: dict[str, str]
    gpus: list[str]
    switch: str | None
    runs: str
    run_count: int | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", help="folder of runs (default: runs)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from sonde.cli import _text

    found = installation(arguments.folder)
    if arguments.json:
        _text.print_json(found)
    else:
        _print(found)
    return 1 if any(state.startswith("stale") for state in found["extensions"].values()) else 0


def installation(folder: str) -> Installation:
    """Versions, extensions, GPUs and runs. Imports no framework."""
    return {
        "sonde": VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "location": os.path.dirname(os.path.dirname(__file__)),
        "packages": {name: _version(name) for name in _PACKAGES},
        "extensions": {name: _extension(name) for name in _EXTENSIONS},
        "gpus": _gpus(),
        "switch": os.environ.get("SONDE"),
        "runs": os.path.abspath(folder),
        "run_count": _run_count(folder),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extension(name: str) -> str:
    """`built`, `stale` or `not built`: whether the extension is there, and of these sources."""
    from importlib import import_module

    from sonde._built import is_current

    if find_spec(name) is None:
        return "not built"
    try:
        extension = import_module(name)
    except ImportError as error:
        return f"broken: {error}"
    return "built" if is_current(extension) else "stale"


def _gpus() -> list[str]:
    """NVIDIA GPUs as the driver names them; none where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GPU_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()][:64]


def _run_count(folder: str) -> int | None:
    """How many runs are there; None where there is no such folder."""
    from sonde.store import locations

    if not os.path.isdir(folder):
        return None
    return len(list(locations.find_runs(folder)))


def _print(found: Installation) -> None:
    from sonde.cli import _text

    missing = [name for name, number in found["packages"].items() if number is None]
    lines = {
        "sonde": f"{found['sonde']} in {found['location']}",
        "python": f"{found['python']} ({sys.executable})",
        "platform": found["platform"],
        "packages": ", ".join(f"{k} {v}" for k, v in found["packages"].items() if v is not None),
        "not installed": ", ".join(missing) or "nothing",
    }
    for name, state in found["extensions"].items():
        lines[name] = f"{state}: {_EXTENSIONS[name]}{_remedy(state)}"
    lines["GPU"] = "; ".join(found["gpus"]) or "no NVIDIA driver found"
    if found["switch"] is not None:
        lines["SONDE"] = found["switch"]
    count = found["run_count"]
    lines["runs"] = f"{found['runs']} ({'no such folder' if count is None else f'{count:,} runs'})"
    width = max(map(len, lines))
    for name, text in lines.items():
        _text.say(f"{name:{width}}  {text}")


def _remedy(state: str) -> str:
    if state == "built":
        return ""
    if state == "not built":
        return ". Plain torch operations are used, which are slower. Install with a C compiler"
    return ". It is not used. Build it again: pip install -e ."
