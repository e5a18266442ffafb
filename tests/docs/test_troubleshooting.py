"""docs/troubleshooting.md explains every event that the sources can write into a run."""

import ast
import re

from document import ROOT

TEXT = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
TELLING = {"tell", "tell_once", "concern", "report", "Event"}
INTERNAL = {"warm_up"}
"""Codes that reach no run."""


def called(node):
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def words(nodes):
    """Constants among expressions that look like the code of an event."""
    found = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return {value for value in found if re.fullmatch(r"[a-z]+(_[a-z]+)*", value)}


def is_choice(node):
    """`code = "a" if ... else "b"`"""
    is_assignment = isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp)
    return is_assignment and ast.unparse(node.targets[0]) == "code"


def codes():
    """Every code that is written as a literal, as a constant `CODE`, or chosen between two."""
    found = set()
    for path in (ROOT / "src" / "sonde").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and called(node) in TELLING:
                first = node.args[1:2] if called(node) == "tell_once" else node.args[:1]
                found |= words(first)
            if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
                found |= words(node.value.elts[:1]) if path.name == "mistakes.py" else set()
            if is_choice(node):
                found |= words([node.value.body, node.value.orelse])
    return found - INTERNAL


def test_every_event_has_an_entry():
    found = codes()
    assert {"no_step", "foreign_optimizer", "metric_nan", "disk", "sink_lost"} <= found
    assert sorted(code for code in found if f"| `{code}` |" not in TEXT) == []


def test_every_entry_is_an_event():
    listed = set(re.findall(r"^\| `([a-z_]+)` \|", TEXT, re.MULTILINE))
    assert sorted(listed - codes() - {"note"}) == []
