"""Values: what is kept of a variable, and whether the variable has changed since.

A `Snapshot` is a copy of a value that can be compared with a later one: tensors by their bits,
plain values by equality and type, containers and objects by what is in them. Nothing of the user's
runs for that: no `__eq__`, no `__deepcopy__`. An object is kept as an `ObjectCopy`: its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, Protocol
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from sonde.tracing.access import MAX_DEPTH, MAX_ITEMS, ValueAccess, fields_of

_SIMPLE: Final = frozenset({bool, int, float, complex, str, bytes, type(None), range, slice})
_BASES: Final[dict[type, Callable[[Any], object]]] = {
    str: str.__str__,
    bytes: bytes.__bytes__,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
}
"""How a value of a class made from one of these becomes a plain one, without its own methods."""

_SMALL_BYTES: Final = 64
_MAX_TEXT: Final = 200

Flag = Any
"""Something that will say later whether a tensor has changed: it stays on its device."""


class TensorOps(ValueAccess, Protocol):
    """What a framework knows about its tensors. `Any`: a tensor of that framework."""

    def is_constant(self, value: object) -> bool:
        """Whether it can never change and may be kept as it is, such as a dtype."""

    def refusal(self, tensor: Any) -> str | None:
        """Why the values of this tensor cannot be had, if so."""

    def size_bytes(self, tensor: Any) -> int: ...

    def version(self, tensor: Any) -> int | None:
        """A number that is another one after each change; None if there is no counter."""

    def copy(self, tensor: Any) -> Any:
        """A copy on the same device. Does not wait for it."""

    def same(self, kept: Any, tensor: Any) -> bool | Flag:
        """Whether they are equal to the bit, or a flag that will say whether they are not."""


class RefusedError(Exception):
    """A value that is not kept. The text says why, and what to do."""


class ObjectCopy:
    """What is kept of an object: the name of its type, its attributes, and a short text."""

    __slots__ = ("fields", "text", "type_name")

    def __init__(self, type_name: str, fields: Mapping[str, object], text: str = "") -> None:
        self.type_name = type_name
        self.fields = dict(fields)
        self.text = text

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and name in self.fields:
            return self.fields[name]
        raise AttributeError(f"the copy of a {self.type_name} has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectCopy):
            return NotImplemented
        mine = (self.type_name, self.fields, self.text)
        return mine == (other.type_name, other.fields, other.text)

    __hash__ = None  # type: ignore[assignment]  # it holds a dict

    def __repr__(self) -> str:
        inside = self.text or ", ".join(f"{k}={v!r}" for k, v in self.fields.items())
        return f"<copy of {self.type_name}: {inside}>"


class ValueSnapshot(Protocol):
    """A value as it was."""

    @property
    def value(self) -> object:
        """The copy, in the form in which it is handed on."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def differs(self, value: object, nature: TensorOps, flags: list[Flag], quick: bool) -> bool:
        """Whether the value is surely another one now.

        `flags`: where to note those tensors of which it is not known yet whether they are the same.
        `quick`: a tensor that is the same object at the same version is unchanged.
        """
        ...


def snapshot(value: object, nature: TensorOps, room_bytes: int) -> ValueSnapshot:
    """A copy of the value.

    Raises:
        RefusedError: if it is larger than `room_bytes`, too long, or has no values.
    """
    if not nature.is_tensor(value):
        return _Taking(nature, room_bytes).take(value, MAX_DEPTH)
    reason = nature.refusal(value)
    if reason is not None:
        raise RefusedError(reason)
    size_bytes = nature.size_bytes(value)
    if size_bytes > room_bytes:
        raise OutOfRoomError(size_bytes)
    return _Tensor(value, nature, size_bytes)


def stamp(value: object, nature: TensorOps) -> int | None:
    """A number that is another one when this very object has changed; None if that is unknown."""
    if type(value) in _SIMPLE:
        return 0
    return nature.version(value) if nature.is_tensor(value) else None


class _Taking:
    """Makes one snapshot, and counts on the way."""

    def __init__(self, nature: TensorOps, room_bytes: int) -> None:
        self._nature = nature
        self._room_bytes = room_bytes
        self._room_items = MAX_ITEMS

    def take(self, value: object, depth: int) -> ValueSnapshot:
        if type(value) in _SIMPLE:
            self._spend(len(value) if isinstance(value, str | bytes) else _SMALL_BYTES)
            return _Simple(value)
        nature = self._nature
        if nature.is_tensor(value):
            taken = snapshot(value, nature, self._room_bytes)
            self._room_bytes -= taken.size_bytes
            return taken
        if isinstance(value, np.ndarray) and value.dtype != object:
            self._spend(value.nbytes)
            return _Array(value)
        if isinstance(value, np.generic | Enum) or nature.is_constant(value):
            self._spend(_SMALL_BYTES)
            return _Simple(value)
        base = next((b for b in _BASES if isinstance(value, b)), None)
        if base is not None:
            self._spend(_SMALL_BYTES)
            return _Simple(_BASES[base](value), type(value))
        parts = _parts_of(value, nature) if depth else None
        if parts is None:
            self._spend(_SMALL_BYTES)
            return _Opaque(value)
        kind, keys, items, rebuild = parts
        self._room_items -= len(items)
        if self._room_items < 0:
            raise RefusedError(
                f"it holds more than {MAX_ITEMS} items. Trace a part of it: name a key or an index."
            )
        return _Container(kind, keys, [self.take(item, depth - 1) for item in items], rebuild)

    def _spend(self, size_bytes: int) -> None:
        if size_bytes > self._room_bytes:
            raise OutOfRoomError(size_bytes)
        self._room_bytes -= size_bytes


class OutOfRoomError(RefusedError):
    """A value for which there is no room left."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"it has {size_bytes} bytes")
        self.size_bytes = size_bytes


class _Simple:
    __slots__ = ("_kind", "value")

    def __init__(self, value: object, kind: type | None = None) -> None:
        self.value = value
        self._kind = kind or type(value)

    @property
    def size_bytes(self) -> int:
        return len(self.value) if isinstance(self.value, str | bytes) else _SMALL_BYTES

    def differs(self, value: object, nature: TensorOps, flags: list[Flag], quick: bool) -> bool:
        kept = self.value
        if type(value) is not self._kind:
            return True
        # NaN is the same as NaN: it has not changed.
        return bool(value != kept) and not bool(kept != kept and value != value)  # noqa: PLR0124


class _Tensor:
    """A tensor's copy, and which tensor at which version is known to be equal to it."""

    __slots__ = ("_copy_version", "_ref", "_version", "size_bytes", "value")

    def __init__(self, value: object, nature: TensorOps, size_bytes: int) -> None:
        self.value = nature.copy(value)
        self.size_bytes = size_bytes
        self._copy_version = nature.version(self.value)
        self._version = nature.version(value)
        self._ref: Callable[[], object] = ref(value)

    def differs(self, value: object, nature: TensorOps, flags: list[Flag], quick: bool) -> bool:
        if not nature.is_tensor(value):
            return True
        is_same_object = quick and self._version is not None and self._ref() is value
        if is_same_object and nature.version(value) == self._version:
            return False
        if nature.version(self.value) != self._copy_version:
            return True  # the copy that we handed on was written to
        verdict = nature.same(self.value, value)
        if verdict is False:
            return True
        if verdict is True:
            self._version = nature.version(value)
            self._ref = ref(value)
        else:
            flags.append(verdict)
        return False


class _Array:
    __slots__ = ("value",)

    def __init__(self, value: NDArray[np.generic]) -> None:
        self.value = value.copy()

    @property
    def size_bytes(self) -> int:
        return int(self.value.nbytes)

    def differs(self, value: object, nature: TensorOps, flags: list[Flag], quick: bool) -> bool:
        kept = self.value
        if not isinstance(value, np.ndarray) or (value.dtype, value.shape) != (
            kept.dtype,
            kept.shape,
        ):
            return True
        return value.tobytes() != kept.tobytes()


class _Opaque:
    """Something that can only be described: a function, a module, a file."""

    __slots__ = ("_id", "value")

    size_bytes = _SMALL_BYTES

    def __init__(self, value: object) -> None:
        self._id = id(value)
        self.value = ObjectCopy(_type_name(value), {}, _text(value))

    def differs(self, value: object, nature: TensorOps, flags: list[Flag], quick: bool) -> bool:
        return id(value) != self._id or _type_name(value) != self.value.type_name


class _Container:
    __slots__ = ("_items", "_keys", "_kind", "_rebuild")

    def __init__(
        self,
        kind: type,
        keys: list[object],
        items: list[ValueSnapshot],
        rebuild: Callable[[list[object], list[object]], object],
    ) -> None:
        self._kind = kind
        self._keys = keys
        self._items = items
        self._rebuild = rebuild

    @property
    def value(self) -> object:
        return self._rebuild(self._keys, [item.value for item in self._items])

    @property
    def size_bytes(self) -> int:
        return _SMALL_BYTES + sum(item.size_bytes for item in self._items)

    def differs(self, value: object, nature: TensorOps, flags: list[Flag], quick: bool) -> bool:
        if type(value) is not self._kind:
            return True
        parts = _parts_of(value, nature)
        if (
            parts is None
            or len(parts[2]) != len(self._items)
            or not _same_keys(parts[1], self._keys)
        ):
            return True
        pairs = zip(self._items, parts[2], strict=True)
        return any(each.differs(item, nature, flags, quick) for each, item in pairs)


_Parts = tuple[type, list[object], list[object], Callable[[list[object], list[object]], object]]


def _parts_of(value: object, nature: TensorOps) -> _Parts | None:
    """Type, keys and items of a container or object, and how to put a copy of it together."""
    kind = type(value)
    if isinstance(value, Mapping):
        pairs = list(value.items())
        return kind, [k for k, _ in pairs], [v for _, v in pairs], _as_dict
    if isinstance(value, list | tuple):
        if hasattr(value, "_fields") and isinstance(value, tuple):
            return kind, [], list(value), lambda _, items: _as_named(kind, items)
        return kind, [], list(value), _as_tuple if isinstance(value, tuple) else _as_list
    if isinstance(value, set | frozenset):
        try:
            ordered = sorted(value)
        except TypeError:
            ordered = sorted(value, key=repr)
        return kind, [], ordered, _as_frozenset if isinstance(value, frozenset) else _as_set
    if nature.is_module(value):
        return None  # only its parts have values
    fields = fields_of(value)
    if not fields:
        return None
    name = _type_name(value)
    return kind, list(fields), list(fields.values()), lambda k, i: _as_object(name, k, i)


def _as_named(kind: type, items: list[object]) -> object:
    made: object = tuple.__new__(kind, items)
    return made


def _as_dict(keys: list[object], items: list[object]) -> object:
    return dict(zip(keys, items, strict=True))


def _as_list(_: list[object], items: list[object]) -> object:
    return list(items)


def _as_tuple(_: list[object], items: list[object]) -> object:
    return tuple(items)


def _as_set(_: list[object], items: list[object]) -> object:
    return set(items)


def _as_frozenset(_: list[object], items: list[object]) -> object:
    return frozenset(items)


def _as_object(name: str, keys: list[Any], items: list[object]) -> object:
    return ObjectCopy(name, dict(zip(keys, items, strict=True)))


def _same_keys(a: Iterable[object], b: Iterable[object]) -> bool:
    return all(x is y or (type(x) is type(y) and bool(x == y)) for x, y in zip(a, b, strict=True))


def _type_name(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _text(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    return name[:_MAX_TEXT] if isinstance(name, str) else ""
