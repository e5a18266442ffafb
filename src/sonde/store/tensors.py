"""Whole values of traced variables: safetensors files, and a table that says where each one lies.

The writer's thread puts the arrays of a flush into files, published like every segment, and then
the rows that point to them. A row names a file by its sequence number and nothing else: no path
that stands in a run is ever followed. Values without arrays stand in the table itself, as JSON.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final, Literal, TypedDict

import pyarrow as pa

from sonde.store import packing, safetensors
from sonde.store.arrays import of_type
from sonde.store.documents import DamagedError
from sonde.store.files import Files, UnsureError, publish
from sonde.store.home import Home
from sonde.store.packing import Bytes, PackedArray
from sonde.store.row_builder import SegmentRows
from sonde.store.schemas import TRACES
from sonde.store.segments import Attempt, rank_folder

FOLDER: Final = "tensors"
MAX_VALUE_BYTES: Final = 4 << 30
"""A single array that is larger than this is not read."""

_FILE_BYTES: Final = 64 << 20
"""A file takes no further value from here on. One value is never spread over files."""

_FILE: Final = re.compile(r"a(\d{4,9})-([0-9a-f]{4})-(\d{8,18})-([0-9a-f]{8})\.safetensors")

Kind = Literal["tensor", "value", "source"]


@dataclass(frozen=True, slots=True)
class TracedValue:
    """One value of one variable, ready to be written.

    A plain tensor has one array and no tree. Anything else has a tree (see `packing`), which may
    refer to arrays. Of kind `source` is the text of a method; its line is the first one.
    """

    name: str
    module: str
    slot: str
    step: int
    phase: str
    call: int
    line: int
    kind: Kind
    tree: object  # JSON
    arrays: Sequence[PackedArray] = ()

    @property
    def rows(self) -> int:
        """How many rows it makes."""
        return 1 if self.kind == "tensor" else 1 + len(self.arrays)

    @property
    def size_bytes(self) -> int:
        return 300 + sum(a.size_bytes for a in self.arrays)


class TraceRow(TypedDict):
    """A row of the view `traces`: a value, or an array that belongs to one (`part`)."""

    rank: int
    attempt: int
    ordinal: int
    part: int
    step: int
    phase: str
    call: int
    name: str
    module: str
    slot: str
    line: int
    kind: str
    dtype: str | None
    shape: list[int] | None
    nbytes: int
    file: int
    offset: int
    crc: int
    value: str | None


@dataclass(frozen=True, slots=True)
class PlacedValue:
    """A value whose arrays have a place: in which file, and from which byte on."""

    value: TracedValue
    file: int
    offsets: Sequence[int]


@dataclass(slots=True)
class TensorFiles:
    """Writes the files of one attempt. For one thread."""

    files: Files
    home: Home
    attempt: Attempt
    next_seq: int = 0
    soft_errors: int = 0
    _ordinal: int = 0
    _names: dict[str, int] = field(default_factory=dict)

    def write(self, values: Sequence[TracedValue]) -> list[PlacedValue]:
        """Put the arrays of some values into a file. Raises OSError; the number is used again."""
        arrays = [
            (f"{n}.{part}" if len(value.arrays) > 1 else f"{n}", array)
            for n, value in enumerate(values)
            for part, array in enumerate(value.arrays)
        ]
        if not arrays:
            return [PlacedValue(value, -1, ()) for value in values]
        data, begins = safetensors.encode(arrays)
        seq = self.next_seq
        try:
            self._publish(f"{self._stem(seq)}-{zlib.crc32(data):08x}.safetensors", data)
        except UnsureError:
            self.next_seq += 1
            raise
        self.next_seq += 1
        rest = iter(begins)
        return [PlacedValue(value, seq, [next(rest) for _ in value.arrays]) for value in values]

    def rows(self, placed: Sequence[tuple[PlacedValue, int]]) -> SegmentRows:
        """Rows of values whose arrays are in place, each with its time."""
        found = []
        for item, t_ns in placed:
            found += list(self._rows_of(item, t_ns))
        columns = [of_type([row.get(f.name) for row in found], f.type) for f in TRACES.schema]
        table = pa.Table.from_arrays(columns, names=TRACES.schema.names)
        repeats = [self._repeats(p.value) for p, _ in placed]
        last = max((p.value.step for p, _ in placed), default=-1)
        return SegmentRows(TRACES, table, any(repeats), last if last >= 0 else None)

    def _rows_of(self, placed: PlacedValue, t_ns: int) -> Iterator[dict[str, object]]:
        value = placed.value
        common = {
            "rank": self.attempt.rank,
            "attempt": self.attempt.number,
            "ordinal": self._ordinal,
            "step": value.step,
            "phase": value.phase,
            "call": value.call,
            "name": value.name,
            "module": value.module,
            "slot": value.slot,
            "line": value.line,
            "t_ns": t_ns,
        }
        self._ordinal += 1
        if value.kind != "tensor":
            tree = json.dumps(value.tree, separators=(",", ":"), allow_nan=False)
            yield {**common, "kind": value.kind, "part": -1, "value": tree}
        for part, (array, offset) in enumerate(zip(value.arrays, placed.offsets, strict=True)):
            yield {
                **common,
                "kind": "tensor" if value.kind == "tensor" else "part",
                "part": part,
                "dtype": array.dtype,
                "shape": list(array.shape),
                "nbytes": array.size_bytes,
                "file": placed.file,
                "offset": offset,
                "crc": _crc(array.data),
            }

    def _repeats(self, value: TracedValue) -> bool:
        last = self._names.get(value.name)
        self._names[value.name] = max(value.step, last if last is not None else value.step)
        return last is not None and last >= value.step

    def _stem(self, seq: int) -> str:
        return f"a{self.attempt.number:04d}-{self.attempt.token}-{seq:08d}"

    def _publish(self, name: str, data: bytes) -> None:
        folder = self.home.folder(FOLDER, rank_folder(self.attempt.rank))
        above = os.path.dirname(folder)
        try:
            soft = publish(self.files, folder, name, data)
        except FileNotFoundError:
            self.files.mkdir(above)
            self.files.mkdir(folder)
            soft = publish(self.files, folder, name, data)
        self.soft_errors += soft is not None


def groups(values: Sequence[tuple[TracedValue, int]]) -> Iterator[list[tuple[TracedValue, int]]]:
    """The values, in portions that go into one file each."""
    group: list[tuple[TracedValue, int]] = []
    size = 0
    for value, t_ns in values:
        group.append((value, t_ns))
        size += value.size_bytes
        if size >= _FILE_BYTES or len(group) >= safetensors.MAX_ENTRIES // 2:
            yield group
            group, size = [], 0
    if group:
        yield group


class TensorReader:
    """Reads arrays of a run by what a row says, after checking all of it."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._listed: dict[int, dict[tuple[int, int], list[str]]] = {}
        self._headers: dict[str, tuple[tuple[int, ...], int, frozenset[tuple[int, int]]]] = {}

    def read(self, row: TraceRow) -> PackedArray:
        """The array that a row of `traces` points to.

        Raises DamagedError, which names the file, if anything about it is not as it should be.
        """
        rank, attempt, seq = row["rank"], row["attempt"], row["file"]
        size, offset, crc = row["nbytes"], row["offset"], row["crc"]
        numbers = (rank, attempt, seq, size, offset, crc)
        if not all(type(n) is int and n >= 0 for n in numbers) or size > MAX_VALUE_BYTES:
            raise DamagedError(f"a row of `{row['name']}` points to no possible place")
        shape = packing.check_shape(row["dtype"] or "", row["shape"] or (), size)
        problem = f"`{FOLDER}/{rank_folder(rank)}` lacks file {seq} of attempt {attempt}"
        for path in self._files(rank).get((attempt, seq), []):
            where = os.path.relpath(path, self._root)
            try:
                data = self._bytes(path, offset, size)
            except (DamagedError, OSError) as error:
                problem = f"`{where}` {error}"
                continue
            if _crc(data) == crc:
                return PackedArray(row["dtype"] or "", shape, data)
            problem = f"`{where}` has a wrong checksum at byte {offset}"
        raise DamagedError(problem)

    def missing(self, rank: int, attempt: int, numbers: Iterable[int]) -> list[int]:
        """Those of the numbered files of an attempt that are not there."""
        known = self._files(rank)
        return [n for n in numbers if (attempt, n) not in known]

    def _files(self, rank: int) -> dict[tuple[int, int], list[str]]:
        """Files of a rank by attempt and number. No links are followed, not even of folders."""
        if rank not in self._listed:
            found: dict[tuple[int, int], list[str]] = {}
            self._listed[rank] = found
            above = os.path.join(self._root, FOLDER)
            folder = os.path.join(above, rank_folder(rank))
            if os.path.islink(above) or os.path.islink(folder) or not os.path.isdir(folder):
                return found
            for name in sorted(os.listdir(folder)):
                match = _FILE.fullmatch(name)
                if match:
                    key = (int(match[1]), int(match[3]))
                    found.setdefault(key, []).append(os.path.join(folder, name))
        return self._listed[rank]

    def _bytes(self, path: str, offset: int, size: int) -> bytes:
        with _open(path) as file:
            status = os.fstat(file.fileno())
            stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
            known = self._headers.get(path)
            if known is None or known[0] != stamp:
                known = (stamp, *_layout(file, status.st_size))
                self._headers[path] = known
            if size and (offset - known[1], offset - known[1] + size) not in known[2]:
                raise DamagedError(f"holds no array of {size} bytes at byte {offset}")
            file.seek(offset)
            data: bytes = file.read(size)
        if len(data) != size:
            raise DamagedError("is too short")
        return data


def _open(path: str) -> BinaryIO:
    """A regular file, open for reading: no link, no pipe, nothing that could block."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedError("is not a file")
    return os.fdopen(fd, "rb")


def _layout(file: BinaryIO, size_bytes: int) -> tuple[int, frozenset[tuple[int, int]]]:
    """Where the arrays of a file begin, and from where to where each one reaches."""
    length = int.from_bytes(file.read(8), "little")
    file.seek(0)
    head = file.read(8 + min(length, safetensors.MAX_HEADER_BYTES))
    header, first = safetensors.parse_header(head, size_bytes)
    entries = [e["data_offsets"] for n, e in header.items() if n != "__metadata__"]
    return first, frozenset((begin, end) for begin, end in entries)


def _crc(data: Bytes) -> int:
    view = packing.view_of(data)
    return zlib.crc32(view.cast("B") if view else b"")
