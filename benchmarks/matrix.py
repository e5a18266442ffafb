"""Run the tests of capture with several versions of torch; write the table into the documentation.

    make matrix                                   all versions, each in an environment of its own
    make matrix ARGS="tests/capture/test_steps.py"   some files
    TORCH_2_11=/path/to/python make matrix        an environment that is already there

Environments are made under `build/matrix`. The table is written after each file; rows of files that
are not run keep their rows.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "torch_versions.md"
BUILD = ROOT / "build" / "matrix"
VERSIONS = {"2.11": "torch==2.11.*", "2.13": "torch==2.13.*", "newest": "torch"}
START, END = "<!-- matrix -->", "<!-- end of matrix -->"


def environment(name: str, requirement: str) -> str:
    """Return the Python of an environment with that torch: a given one, or one that is made."""
    given = os.environ.get("TORCH_" + name.replace(".", "_").upper())
    if given:
        return given
    folder = BUILD / name
    python = str(folder / "bin" / "python")
    if not (folder / "ready").exists():
        create(folder, python)
        pins = [
            line
            for line in (ROOT / "constraints.txt").read_text().splitlines()
            if not re.match(r"(torch|triton|nvidia|cuda)\b", line)
        ]
        constraints = BUILD / f"{name}.txt"
        constraints.write_text("\n".join(pins))
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--upgrade", "pip", "setuptools"], check=True)
        packages = [requirement, "-e", ".[all]", "--group", "dev"]
        command = [*pip, "-c", constraints, "--no-build-isolation", *packages]
        subprocess.run(command, check=True, cwd=ROOT)
        (folder / "ready").touch()
    return python


def create(folder: Path, python: str) -> None:
    """Make an empty environment; where Python comes without ensurepip, its own pip fills it."""
    try:
        venv.create(folder, clear=True, with_pip=True)
    except subprocess.CalledProcessError:
        venv.create(folder, clear=True, with_pip=False)
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip"]
        subprocess.run(pip, check=True)


def run(python: str, files: list[str], report: Path) -> dict[str, str]:
    """Run the files with this Python. Return what became of the tests of each."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_WAIT_POLICY": "PASSIVE"}
    ask = [python, "-c", "import torch; print(torch.__version__.partition('+')[0])"]
    version = subprocess.run(ask, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    found = {}
    for file in files:
        report.unlink(missing_ok=True)
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run([*command, file], cwd=ROOT, env=env, check=False)
        found[file] = outcome(report)
        print(f"torch {version}  {file}  {found[file]}", flush=True)
        write(version, {file: found[file]})
    return found


def outcome(report: Path) -> str:
    """Return `12 passed`, `11 passed, 1 failed`, or what else the report says."""
    if not report.exists():
        return "did not run"
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for suite in ET.parse(report).getroot().iter("testsuite"):  # our own file
        n, bad, skipped = (int(suite.get(k, 0)) for k in ("tests", "failures", "skipped"))
        bad += int(suite.get("errors", 0))
        counts["passed"] += n - bad - skipped
        counts["failed"] += bad
        counts["skipped"] += skipped
    return ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "no tests"


def known_rows(text: str) -> dict[str, dict[str, str]]:
    """Return what the table says: by file, by version."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    if len(lines) < 3:
        return {}
    versions = [cell.strip().removeprefix("torch ") for cell in lines[0].strip("|").split("|")][1:]
    rows = {}
    for line in lines[2:]:
        file, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[file.strip("`")] = dict(zip(versions, cells, strict=True))
    return rows


def table(rows: dict[str, dict[str, str]]) -> str:
    """Return the rows as a table in Markdown."""
    found = {v for row in rows.values() for v in row}
    versions = sorted(found, key=lambda v: [int(n) for n in re.findall(r"\d+", v)])
    lines = ["| tests | " + " | ".join(f"torch {v}" for v in versions) + " |"]
    lines.append("|---" * (len(versions) + 1) + "|")
    for file, row in sorted(rows.items()):
        cells = " | ".join(row.get(v, "not run") or "not run" for v in versions)
        lines.append(f"| `{file}` | {cells} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="test files (all of tests/capture)")
    parser.add_argument("--only", choices=VERSIONS, help="one version")
    options = parser.parse_args()
    whole = sorted((ROOT / "tests" / "capture").glob("test_*.py"))
    files = options.files or ["tests/test_internals.py", *(str(f.relative_to(ROOT)) for f in whole)]
    BUILD.mkdir(parents=True, exist_ok=True)
    has_failed = False
    for name, requirement in VERSIONS.items():
        if options.only in (None, name):
            found = run(environment(name, requirement), files, BUILD / f"{name}.xml")
            has_failed |= any("failed" in text or "not" in text for text in found.values())
    print(table(known_rows(TABLE.read_text())))
    return int(has_failed)


def write(version: str, found: dict[str, str]) -> None:
    """Put the outcomes of one version into the document."""
    before, _, rest = TABLE.read_text().partition(START)
    old, _, after = rest.partition(END)
    rows = known_rows(old)
    for file, text in found.items():
        rows.setdefault(file, {})[version] = text
    TABLE.write_text(f"{before}{START}\n\n{table(rows)}\n\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
