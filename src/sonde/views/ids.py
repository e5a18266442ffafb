"""Ids: what stands for a run, a module, a call or a site in a request.

An id is looked up in a table of what a run has; nothing is ever made of it, least of all a path.
Where a name is short and plain its id looks like it, so that links can be read; any other name has
a hash for an id. Ids depend on names alone: they are the same tomorrow, and in another run with the
same modules.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

ROOT: Final = "."
"""The id of the model itself."""

ROOT_LABEL: Final = "(root)"
"""What the model itself is called where its type is not known: no child is called so."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.#/-]{0,199}")
_SLUG: Final = re.compile(r"[^A-Za-z0-9_-]+")


def of_name(name: str) -> str:
    """The id of a module (by path), of a call (`h.3.attn#1`) or of a site (by its name)."""
    if not name:
        return ROOT
    if name[0] == "." and (len(name) == 1 or name[1] in "#/"):  # the model's own calls and sites
        rest = name[1:]
        if not rest or (_PLAIN.fullmatch(f"_{rest}") and ".." not in rest):
            return name
        return _hash(name)
    if _PLAIN.fullmatch(name) and ".." not in name:
        return name
    return _hash(name)


def of_run(name: str, run_id: str | None) -> str:
    """The id of a run: readable, and another one when a new run takes an old one's name."""
    slug = _SLUG.sub("-", name)[:40].strip("-") or "run"
    return f"{slug}-{_digest(f'{name}{chr(0)}{run_id}')[:6]}"


def _hash(name: str) -> str:
    return f"~{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
