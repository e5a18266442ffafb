"""What Sonde raises and warns with."""

from __future__ import annotations


class SondeError(Exception):
    """Something is wrong with how Sonde was asked: the message says what, and what to do."""


class RunError(SondeError):
    """A run directory cannot be written or read."""


class SondeWarning(UserWarning):
    """Something about the recording deserves attention; training continues."""
