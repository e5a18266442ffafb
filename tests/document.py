"""A document as a program: its Python blocks and its commands, in order.

Fenced blocks have a language. `python` blocks share one namespace, `console` blocks hold commands
after `$ `, `text` blocks are output. An HTML comment before a block changes how it is run:

    <!-- setup
    code that runs first and is not shown
    -->
    <!-- needs: fastai -->     run only if the package is installed
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LANGUAGES = {"python", "console", "text"}

_PIECE = re.compile(
    r"<!-- setup\n(?P<setup>.*?)-->|<!-- needs: (?P<needs>[\w.]+) -->"
    r"|^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)

_RUNNER = """\
import os, re, shlex, subprocess, sys
import matplotlib
matplotlib.use("Agg")

def installed(name):
    from importlib.util import find_spec
    return find_spec(name) is not None

def command(line):
    if line.startswith("sonde view"):
        program = [sys.executable, "-m", *shlex.split(line), "--no-browser", "--port=0"]
        server = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        try:
            assert any("http://" in text for text in server.stdout), line
        finally:
            server.terminate()
            server.wait()
    elif line.startswith("sonde "):
        program = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(program, capture_output=True, text=True)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, (line, done.stderr)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block, or code that is not shown (`setup`)."""

    language: str
    body: str
    needs: str | None = None


def blocks(path: Path) -> list[Block]:
    """The blocks of a document, in order."""
    found, needs = [], None
    for piece in _PIECE.finditer(path.read_text(encoding="utf-8")):
        if piece["needs"]:
            needs = piece["needs"]
        elif piece["setup"]:
            found.append(Block("setup", piece["setup"], needs))
        else:
            indent = len(piece["indent"])
            body = "\n".join(line[indent:] for line in piece["body"].splitlines()) + "\n"
            found.append(Block(piece["language"], body, needs))
            needs = None
    return found


def commands(block: Block) -> list[str]:
    """The command lines of a `console` block."""
    lines = re.sub(r"\\\n\s*", " ", block.body).splitlines()
    return [line.removeprefix("$ ").strip() for line in lines if line.startswith("$ ")]


def program(path: Path) -> str:
    """All of a document as one Python program."""
    parts = [_RUNNER]
    for block in blocks(path):
        if block.language in ("python", "setup"):
            code = block.body
        elif block.language == "console":
            code = "\n".join(f"command({line!r})" for line in commands(block))
        else:
            continue
        if block.needs:
            code = f"if installed({block.needs!r}):\n" + _indented(f"{code}\npass\n")
        parts.append(code)
    return "\n".join(parts)


def run(path: Path, folder: Path) -> None:
    """Run a document in a folder. Warnings of Sonde are errors."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    script = folder / "document.py"
    script.write_text(program(path), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error::sonde.SondeWarning", script],
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "KERAS_BACKEND": "torch",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{path.name}\n{done.stderr[-3000:]}"


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())
