"""What the server and its workers say to each other, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class WorkerRequest(TypedDict, total=False):
    """A question for a worker: about `run`, or about several `runs`."""

    view: str
    run: str
    runs: Sequence[str]
    question: Sequence[tuple[str, str]]


class ReplyHead(TypedDict, total=False):
    """What comes before the body of an answer. `status` is that of HTTP."""

    status: int
    type: str
    code: str
    message: str
    size: int
    is_full: bool
    list_version: str
    stamps: dict[str, str]
    state: object
