"""The compiler's limit on recompilations: noticed when it is reached.

From then on the compiler runs every call of that function that no code fits in eager mode. It says
so in its log and nowhere else, so the log is where we look.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final

from sonde._torch_internals.frames import RECOMPILE_LOG

_PATTERN: Final = re.compile(r"hit config\.(\w+) \((\d+)\)\s+function: (.+)")


class _Notice(logging.Filter):
    """Lets every message through."""

    report: Callable[[str], None] | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if self.report is not None and "hit config" in str(record.msg):
            found = _PATTERN.search(record.getMessage())
            if found is not None:
                self.report(_text(*found.groups()))
        return True


def report_to(report: Callable[[str], None] | None) -> None:
    """Call the function with a message whenever the limit is reached; `None` ends that."""
    _NOTICE.report = report
    if report is None:
        RECOMPILE_LOG.removeFilter(_NOTICE)
    else:
        RECOMPILE_LOG.addFilter(_NOTICE)


def _text(name: str, value: str, function: str) -> str:
    return (
        f"torch.compile reached {name} ({value}) for {function}: other variants of it run in eager "
        "mode, and slower. Set TORCH_LOGS=recompiles to see the reasons, or raise "
        f"torch._dynamo.config.{name}"
    )


_NOTICE: Final = _Notice()
