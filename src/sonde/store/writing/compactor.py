"""The compactor: a process that a writer starts now and then, so that training pays nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from sonde import _python
from sonde.store.schemas import TABLES

BLOCK: Final = 64
"""Segments that are compacted together, at least."""


class Compactor:
    """Starts `sonde compact` for a rank when another block is complete, one process at a time."""

    def __init__(self, root: str, rank: int) -> None:
        self._command = _python.command(
            "sonde", "compact", root, "--rank", str(rank), "--background"
        )
        self._blocks: dict[str, int] = {}
        self._is_wanted = False
        self._process: subprocess.Popen[bytes] | None = None

    def consider(self, next_seqs: Mapping[str, int]) -> None:
        """Start a process if a table has completed a block since the last one. Never raises."""
        for table in TABLES:
            blocks = next_seqs.get(table.name, 0) // BLOCK
            if table.compacted and blocks > self._blocks.get(table.name, 0):
                self._blocks[table.name] = blocks
                self._is_wanted = True
        if self._is_wanted and self._is_idle() and sys.executable:
            self._is_wanted = False
            self._start()

    def leave(self) -> None:
        """Let a running process finish by itself: a crash of it, or of us, harms nothing."""
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0  # or Python would warn that it still runs

    def _is_idle(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                close_fds=True,
                env=_python.environment(),
            )
        except Exception:
            self._process = None  # an optimisation, not a need: the next block tries again
