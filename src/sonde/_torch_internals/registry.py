"""Names of torch that it does not promise to keep: what for, and what happens without them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sonde._signals import pass_on

ALL_VERSIONS: Final = ("2.11", "2.13", "2.15")

Internal = Any
"""Something of torch whose type torch does not promise to keep."""


@dataclass
class TorchName:
    """One use of torch's internals.

    `symbols` are `module:attribute.path`. `left_out` is empty where the fallback records the same;
    `is_there` is None until the probe was made.
    """

    name: str
    symbols: tuple[str, ...]
    purpose: str
    fallback: str
    left_out: str = ""
    seen: tuple[str, ...] = ALL_VERSIONS
    is_there: bool | None = None

    def find(self) -> list[Internal] | None:
        """Return what the symbols stand for, None if one is missing."""
        try:
            found = [_resolved(symbol) for symbol in self.symbols]
        except (ImportError, AttributeError):
            self.is_there = False
            return None
        self.is_there = True
        return found

    def holds(self, probe: Callable[[], bool]) -> bool:
        """Whether the probe finds it; an error counts as missing."""
        try:
            self.is_there = probe()
        except Exception as error:
            pass_on(error)
            self.is_there = False
        return self.is_there


NAMES: Final[dict[str, TorchName]] = {}
"""All uses, by name. Complete once the modules of this package are loaded."""


def uses(
    name: str,
    *symbols: str,
    purpose: str,
    fallback: str,
    left_out: str = "",
    seen: tuple[str, ...] = ALL_VERSIONS,
) -> TorchName:
    """Declare a use."""
    made = NAMES[name] = TorchName(name, symbols, purpose, fallback, left_out, seen)
    return made


def missing() -> list[str]:
    """Return what is left out of every run with this torch, a sentence for each name."""
    return [
        f"This torch has no `{each.symbols[0].replace(':', '.')}`: {each.left_out}"
        for each in NAMES.values()
        if each.left_out and each.is_there is False
    ]


def _resolved(symbol: str) -> Internal:
    module, _, path = symbol.partition(":")
    found: Internal = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
