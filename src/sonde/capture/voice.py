"""The voice: warns once of each thing, and never raises.

Where warnings are errors (`python -W error`), one would stop training. So it is logged instead, to
the logger `sonde.warnings`. Hooks do not even warn: the drain does it for them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from types import FrameType
from typing import Final

from sonde._errors import SondeWarning
from sonde._python import frame_at
from sonde._signals import pass_on

LOG: Final = logging.getLogger("sonde.warnings")
"""What could not be said as a warning."""

_OWN: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

Place = tuple[str, int]
"""A file and a line."""

_MOST: Final = 1000
"""Texts that are kept apart; what comes after these is not warned of."""


class WarnOnce:
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
            say(text)


def say(text: str, place: Place | None = None) -> None:
    """Warn, at that line or at the one of the user's code that led here. Where that raises, log."""
    try:
        warnings.warn_explicit(text, SondeWarning, *(place or users_place()))
    except Exception as error:  # warnings are errors, or a function of the user's shows them
        pass_on(error)
        LOG.warning("%s", text)


def users_place() -> Place:
    """The line of the user's code that led here: frames of Sonde and of torch are skipped."""
    torch = sys.modules.get("torch")
    skipped = [_OWN, contextlib.__file__]
    if torch is not None and torch.__file__ is not None:
        skipped.append(os.path.dirname(torch.__file__) + os.sep)
    prefixes = tuple(skipped)
    frame: FrameType | None = frame_at(1)
    place = ("sonde", 1)
    while frame is not None:
        place = (frame.f_code.co_filename, frame.f_lineno or 1)
        if not place[0].startswith(prefixes):
            break
        frame = frame.f_back
    return place
