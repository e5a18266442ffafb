"""Sonde looks inside neural networks while they train."""

from sonde._errors import RunError as RunError
from sonde._errors import SondeError as SondeError
from sonde._errors import SondeWarning as SondeWarning
from sonde._version import VERSION as __version__
