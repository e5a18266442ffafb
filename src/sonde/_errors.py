"""What Sonde raises and warns with."""

from __future__ import annotations


class SondeError(Exception):
    """Wrong use of Sonde. The message has the problem and the remedy."""


class RunError(SondeError):
    """A run directory cannot be written or read."""


class SondeWarning(UserWarning):
    """Something about the recording deserves attention; training continues."""
