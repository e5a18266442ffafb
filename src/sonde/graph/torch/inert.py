"""Hooks that copies and pickles of a model do not carry along."""

from __future__ import annotations

import contextlib
from collections.abc import Callable


class InertHook:
    """A callable that copies and pickles into something inert."""

    __slots__ = ()

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")
