"""The status of a run as a word with a mark and a colour; the word alone says it all."""

from __future__ import annotations

from typing import Final

from rich.text import Text

_LOOKS: Final = {
    "live": ("●", "bold green"),
    "finished": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "crashed": ("✗", "bold red"),
}


def styled(status: str) -> Text:
    mark, style = _LOOKS.get(status, ("?", "dim"))
    return Text(f"{mark} {status}", style=style)
