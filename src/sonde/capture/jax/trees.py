"""Arrays inside nested values, each with its path: `0`, `1.key`, `logits`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, cast

import jax
from jax import Array
from jax.tree_util import KeyPath

_MOST: Final = 64
"""Arrays of one value that are told apart."""

T = TypeVar("T")
Keys = tuple[str, ...]


def keys_of(path: KeyPath) -> Keys:
    """The keys of a path of JAX's as words."""
    return tuple(_word(key) for key in path)


def is_array(x: object) -> bool:
    """Whether it is an array with numbers."""
    return isinstance(x, Array) and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


def mapped(value: T, see: Callable[[str, Array], Array], is_leaf: Callable[[object], bool]) -> T:
    """The same value with `see(slot, array)` for each array in it; nothing else is replaced."""
    if is_array(value):
        return cast("T", see("0", value))
    leaves, tree = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_leaf)
    found = [x for _, x in leaves]
    seen = 0
    for i, (path, x) in enumerate(leaves):
        if is_array(x) and seen < _MOST:
            found[i] = see(".".join(keys_of(path)), x)
            seen += 1
    return cast("T", jax.tree_util.tree_unflatten(tree, found)) if seen else value


def named(tree: object) -> list[tuple[Keys, Array]]:
    """Each array of a tree of parameters with its keys; boxes around arrays have no key."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    found = []
    for path, x in leaves:
        keys = keys_of(path)
        if len(keys) > 1 and keys[-1] == "value" and isinstance(path[-1], jax.tree_util.GetAttrKey):
            keys = keys[:-1]
        if is_array(x):
            found.append((keys, x))
    return found


def place_of(keys: Keys) -> tuple[str, str]:
    """The module's path and the parameter's own name, of a parameter's keys."""
    inner = keys[1:] if len(keys) > 1 and keys[0] == "params" else keys
    return ".".join(inner[:-1]), inner[-1] if inner else "0"


def _word(key: object) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
