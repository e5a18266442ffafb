"""How a training ended, as the words that a run keeps: a reason that begins with `failed` marks it
as failed."""

from __future__ import annotations

import sys


def of_error(error: BaseException | None) -> str:
    """The reason for which a block of code was left."""
    if error is None or isinstance(error, GeneratorExit):
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return "exited"
    return f"failed: {type(error).__name__}{_text(error)}"


def of_process() -> str:
    """The reason for which the process ends, as far as Python says: called when it does.

    An error that nothing caught is kept by the interpreter. (With `sys.exit(3)` it keeps nothing.)
    A person at a prompt may have seen many.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):
        return "exited"
    return of_error(error)


def _text(error: BaseException) -> str:
    try:
        text = str(error)[:1000]
    except Exception:  # it is the user's class
        return ""
    return f": {text}" if text else ""
