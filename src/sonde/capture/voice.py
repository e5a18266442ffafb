"""The voice: warns once of each thing, and never raises.

Where warnings are errors (`python -W error`), one would stop training. So it is logged instead, to
the logger `sonde.warnings`. Hooks do not even warn: the drain does it for them.
"""

from __future__ import annotations

import logging
import warnings
from typing import Final

from sonde._errors import SondeWarning

LOG: Final = logging.getLogger("sonde.warnings")
"""What could not be said as a warning."""

_MOST: Final = 1000
"""Texts that are kept apart; what comes after these is not warned of."""


class Voice:
    """Warns of each text once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def is_new(self, text: str) -> bool:
        """Whether the text was not asked about before."""
        if text in self._said or len(self._said) >= _MOST:
            return False
        self._said.add(text)
        return True

    def warn(self, text: str) -> None:
        """Warn here and now, if the text is new."""
        if self.is_new(text):
            say(text, stacklevel=3)


def say(text: str, stacklevel: int = 2) -> None:
    """Warn. Where that raises, log."""
    try:
        warnings.warn(text, SondeWarning, stacklevel=stacklevel + 1)
    except Exception:  # warnings are errors here, or a function of the user's shows them
        LOG.warning("%s", text)
