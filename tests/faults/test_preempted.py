"""What a signal handler raises inside Sonde reaches the user, from every line, and breaks nothing.

`preempted.py` has the tables: handlers that programs set, and what is done while one of them runs.
Called by hand it interrupts every line; here, some of them.
"""

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import sonde

SCRIPT = Path(__file__).parent / "preempted.py"
SOURCES = Path(sonde.__file__).parent

TRAINING = ("capture", "graph", "metrics", "tracing")
"""Where code runs on the training thread."""

PASSING_ON = {
    "pass_on",
    "is_from_handler",
    "failed",
    "fail",
    "_failed",
    "_fail",
    "tap_failed",
    "_alone",
}
"""Calls that raise an error again if a handler has raised it."""

IN_THREADS = {"capture/drain.py": 1, "tracing/pipeline.py": 1}
"""How many catches are in threads of ours: Python calls handlers in the main thread only."""


@pytest.mark.parametrize(
    ("what", "most"),
    [("Watching", 60), ("Measuring", 60), ("Arrays", 60), ("Tracing", 60), ("Beginning", 30)],
)
def test_a_handler_that_raises_at_any_line_reaches_the_user_and_nothing_is_lost(
    tmp_path, what, most
):
    done = subprocess.run(
        [sys.executable, SCRIPT, what, tmp_path, str(most)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["n"] > most / 3
    assert found["swallowed"] == []
    assert found["left"] == []
    assert found["found"] == found["expected"], "it works as if it had not been interrupted"


def is_broad(kind):
    return kind is None or "Exception" in {n.id for n in ast.walk(kind) if isinstance(n, ast.Name)}


def called(node):
    functions = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in functions}


def broad_catches():
    """Places that catch every error, each with whether it raises what a handler has raised."""
    for part in TRAINING:
        for path in sorted((SOURCES / part).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                place = f"{path.relative_to(SOURCES)}:{getattr(node, 'lineno', 0)}"
                if isinstance(node, ast.ExceptHandler) and is_broad(node.type):
                    raises = any(isinstance(n, ast.Raise) for n in ast.walk(node))
                    yield place, raises or bool(called(node) & PASSING_ON)
                if isinstance(node, ast.Call) and called(node) == {"suppress"}:
                    yield place, not any(map(is_broad, node.args))


def test_no_broad_catch_of_the_training_side_swallows_what_a_handler_raised():
    found = dict(broad_catches())
    assert len(found) > 30
    swallowing = [place for place, is_passed_on in found.items() if not is_passed_on]
    assert Counter(place.partition(":")[0] for place in swallowing) == IN_THREADS, swallowing
