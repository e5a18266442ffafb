"""How things look as the last value of a notebook's cell. What draws them is loaded then."""

from __future__ import annotations

from importlib import import_module
from typing import Final

_PLACE: Final = "sonde.notebook.markup"


class Displayed:
    """Something with a short HTML form in notebooks."""

    def _repr_html_(self) -> str | None:
        """A few lines of HTML; None where there are none, and the notebook shows the text."""
        try:
            found: str | None = import_module(_PLACE).html_of(self)
        except Exception:  # showing something must not end a cell
            return None
        return found
