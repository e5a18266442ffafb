"""Frameworks whose models can be watched, loaded when one is."""

from __future__ import annotations

import sys
from typing import Any, Final

from sonde._errors import SondeError

_OLDEST_TORCH: Final = "2.11"
"""The oldest that was tried. There, gradients inside compiled code are left out, with a note."""


def torch_capture() -> Any:
    """The torch side, loaded on first use. `Any`: a module."""
    if sys.modules.get("torch") is None:
        raise SondeError("`model` must be a torch.nn.Module; torch has not been imported.")
    from torch.torch_version import TorchVersion

    found = TorchVersion(sys.modules["torch"].__version__)
    if found < _OLDEST_TORCH:
        raise SondeError(
            f"Sonde needs torch {_OLDEST_TORCH} or newer, and this is {found}, whose compiler "
            "fails on a watched model. Upgrade torch."
        )
    import sonde.capture.torch.session

    return sonde.capture.torch.session
