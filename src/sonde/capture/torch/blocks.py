"""Blocks of a user's code in which passes have another phase: `watch.phase`, `watch.branch`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sonde.capture.torch.capture import Capture


@contextmanager
def in_phase(capture: Capture, name: str, step: int | None = None) -> Iterator[None]:
    """Record the passes inside under this phase, and under this step if one is given."""
    before = _switch(capture, name, step)
    try:
        yield
    finally:
        _switch(capture, *before)


@contextmanager
def in_branch(capture: Capture, name: str) -> Iterator[None]:
    """Record the training passes inside under this branch of training."""
    before, capture.phases.branch = capture.phases.branch, name
    try:
        yield
    finally:
        capture.phases.branch = before


def _switch(capture: Capture, name: str | None, step: int | None) -> tuple[str | None, int | None]:
    """Take all passes for this phase from now on. Returns what was before."""
    with capture.lock:
        if name is not None:
            capture.wake()
        capture.end_outside()
        before = capture.phases.force(name, step)
        capture.settle()
        return before
