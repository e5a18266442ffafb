"""LogFrames as files: Parquet, CSV, and pickles of Track & Visualize read without running code."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import ModuleType
from typing import IO, Final, Literal
from urllib.request import urlopen

from sonde._errors import SondeError
from sonde._require import require
from sonde.logframe.schema import Frame, exponent, validate

MAX_PICKLE_BYTES: Final = 1 << 30
SUFFIXES: Final = (".parquet", ".csv", ".pkl", ".pickle")
"""Files that may hold a LogFrame."""
Format = Literal["parquet", "csv", "pickle"]
_FORMATS: Final = {".parquet": "parquet", ".csv": "csv", ".pkl": "pickle", ".pickle": "pickle"}
_COMPRESSIONS: Final = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz"}
_SEPARATOR: Final = "|"

_DATA_ONLY: Final = {
    "builtins": {"bytearray", "slice"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy._core.numeric": {"_frombuffer"},
    "pandas.core.frame": {"DataFrame"},
    "pandas": {"DataFrame", "Index", "MultiIndex", "RangeIndex", "StringDtype"},
    "pandas.core.internals.managers": {"BlockManager"},
    "pandas.core.internals.blocks": {"new_block"},
    "pandas._libs.internals": {"_unpickle_block"},
    "pandas.core.indexes.base": {"Index", "_new_Index"},
    "pandas.core.indexes.multi": {"MultiIndex"},
    "pandas.core.indexes.range": {"RangeIndex"},
    "pandas.core.indexes.numeric": {"Int64Index", "Float64Index"},
    "pandas.core.indexes.frozen": {"FrozenList"},
    "pandas.core.arrays.string_": {"StringArray", "StringDtype"},
    "pandas.core.arrays.string_arrow": {"ArrowStringArray"},
    "pandas.arrays": {"ArrowStringArray", "StringArray"},
    "pandas._libs.arrays": {"__pyx_unpickle_NDArrayBacked"},
    "pyarrow.lib": {
        "Buffer",
        "StringScalar",
        "_restore_array",
        "chunked_array",
        "py_buffer",
        "type_for_alias",
    },
}
"""Everything that a pickle of a frame may name. None of it runs code of the file's choice."""


def read_logframe(
    path: str | os.PathLike[str] | IO[bytes],
    format: Format | None = None,
    *,
    compression: str | None = "infer",
) -> Frame:
    """A LogFrame from a `.parquet`, `.csv` or `.pkl` file, or from an open one.

    Pickles are read by a loader that refuses everything but the data of a pandas frame.

    Args:
        path: Of the file, or its URL; or an open binary file, with its format.
        format: "parquet", "csv" or "pickle"; by default what the name of the file says.
        compression: "gzip", "bz2" or "xz", by default what the name of the file says.

    Raises:
        SondeError: There is no LogFrame in that file, or it would run code.
    """
    pd = _pandas()
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else "the open file"
    plain, ending = os.path.splitext(name)
    if compression == "infer":
        compression = _COMPRESSIONS.get(ending.lower())
    if ending.lower() in _COMPRESSIONS:
        ending = os.path.splitext(plain)[1]
    kind = format or _FORMATS.get(ending.lower())
    try:
        if kind not in _FORMATS.values():
            raise SondeError(
                f"`{name}` is no `.parquet`, `.csv` or `.pkl` file, so it cannot be read."
            )
        with _unpacked(path, compression) as file:
            match kind:
                case "parquet":
                    frame = _from_flat(pd.read_parquet(file))
                case "csv":
                    frame = _from_flat(pd.read_csv(file, keep_default_na=True))
                case _:
                    frame = _unpickled(file, name)
    except OSError as error:
        raise SondeError(f"Cannot read `{name}`: {error}.") from error
    except SondeError:
        raise
    except Exception as error:  # whatever a library raises on a file that is not what it says
        raise SondeError(f"`{name}` cannot be read as a LogFrame: {error}") from error
    return validate(frame)


@contextmanager
def _unpacked(
    path: str | os.PathLike[str] | IO[bytes], compression: str | None
) -> Iterator[IO[bytes]]:
    if compression not in (None, *_COMPRESSIONS.values()):
        raise SondeError(
            f"`compression` must be 'infer', 'gzip', 'bz2', 'xz' or None, got {compression!r}."
        )
    with ExitStack() as opened:
        if isinstance(path, str) and path.startswith(("https://", "http://")):
            answer = opened.enter_context(urlopen(path))  # noqa: S310  # http, as the line above says
            file: IO[bytes] = io.BytesIO(answer.read(MAX_PICKLE_BYTES))
        elif isinstance(path, str | os.PathLike):
            file = opened.enter_context(open(path, "rb"))
        else:
            file = path
        if compression is not None:
            opener = import_module({"xz": "lzma"}.get(compression, compression)).open
            file = opened.enter_context(opener(file, "rb"))
        yield file


def write(frame: Frame, path: str | os.PathLike[str]) -> None:
    """Write a LogFrame to a `.parquet` or `.csv` file."""
    validate(frame)
    name = os.fspath(path)
    kind = os.path.splitext(name)[1].lower()
    flat = frame.copy(deep=False)
    flat.columns = [f"{group}{_SEPARATOR}{_text(column)}" for group, column in frame.columns]
    match kind:
        case ".parquet":
            flat.to_parquet(name, index=False)
        case ".csv":
            flat.to_csv(name, index=False)
        case _:
            raise SondeError(f"`{name}` must end in `.parquet` or `.csv`.")


def _pandas() -> ModuleType:
    try:
        return require("pandas", extra="pandas")
    except ImportError as error:
        raise SondeError(str(error)) from None


def _from_flat(flat: Frame) -> Frame:
    """A frame whose columns have two levels again; of our own files, and of pandas' own."""
    pd = _pandas()
    if flat.columns.nlevels == 1:
        pairs = [_pair(str(column)) for column in flat.columns]
    else:
        pairs = [(str(group), column) for group, column in flat.columns]
    flat.columns = pd.MultiIndex.from_tuples(
        [(g, _column(c)) if g == "exponent_counts" else (g, c) for g, c in pairs]
    )
    return flat


def _pair(column: str) -> tuple[str, str]:
    """`scalar_stats|rm2`, or what pandas writes for tuples: `('scalar_stats', 'rm2')`."""
    if column.startswith("("):
        group, _, name = column.strip("()").partition(",")
        return group.strip(" '\""), name.strip(" '\"")
    group, _, name = column.partition(_SEPARATOR)
    return group, name


def _column(name: object) -> object:
    value = exponent(name)
    if value != value:  # noqa: PLR0124  # NaN: no exponent
        return name
    return value if abs(value) == float("inf") else int(value)


def _text(column: object) -> str:
    return str(column)


class _DataLoader(pickle.Unpickler):
    """Loads frames and arrays. Everything else that a pickle could name is refused."""

    def find_class(self, module: str, name: str) -> object:
        if name in _DATA_ONLY.get(module, ()):
            return super().find_class(module, name)
        raise SondeError(
            f"This pickle would load `{module}.{name}`, which is no data of a LogFrame. "
            "Nothing of it was run. Convert it to Parquet where you trust it."
        )


def _unpickled(file: IO[bytes], name: str) -> Frame:
    held = file.read(MAX_PICKLE_BYTES + 1)
    if len(held) > MAX_PICKLE_BYTES:
        raise SondeError(f"`{name}` is larger than {MAX_PICKLE_BYTES >> 20} MiB. Use Parquet.")
    return _DataLoader(io.BytesIO(held)).load()
