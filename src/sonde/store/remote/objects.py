"""Objects of a store behind a URL: list, get, put, delete. S3, GCS, and what fsspec has."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from sonde._errors import RunError
from sonde._require import require

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_S3_OPTIONS: Final = ("region", "scheme", "endpoint_override")


class ObjectInfo(NamedTuple):
    """The size of an object, and when it was written by the clock of the store."""

    size_bytes: int
    modified_ns: int


class Objects(Protocol):
    """The objects below a URL, by relative name. Every method may raise OSError."""

    def find(self, prefix: str = "") -> dict[str, ObjectInfo]:
        """All objects whose name begins with the folder `prefix`."""

    def folders(self) -> list[str]:
        """The folders directly below the URL."""

    def info(self, name: str) -> ObjectInfo | None:
        """The object of that name, None if there is none."""

    def get(self, name: str, limit_bytes: int) -> bytes: ...

    def put(self, name: str, data: bytes) -> None:
        """Store an object whole; what has the name is replaced."""

    def delete(self, name: str) -> None: ...


def is_url(path: object) -> bool:
    """Whether this names an object store, and no folder."""
    return isinstance(path, str) and _URL.match(path) is not None


def shown(url: str) -> str:
    """The URL without the options and keys that it may hold."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def below(url: str, name: str) -> str:
    """The URL of what is called `name` below another; options of the URL stay."""
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()


def above(url: str) -> tuple[str, str]:
    """The URL of the folder, and the last name."""
    parts = urlsplit(url)
    folder, _, name = parts.path.rstrip("/").rpartition("/")
    return parts._replace(path=folder).geturl(), name


class StoredObjects:
    """The objects below a URL. Connects when it is first used."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connected: tuple[FileSystem, str] | None = None

    def find(self, prefix: str = "") -> dict[str, ObjectInfo]:
        from pyarrow.fs import FileSelector, FileType

        system, root = self._connect()
        above = f"{root}/{prefix}".rstrip("/")
        found = system.get_file_info(FileSelector(above, allow_not_found=True, recursive=True))
        return {
            info.path[len(root) + 1 :]: ObjectInfo(info.size, info.mtime_ns or 0)
            for info in found
            if info.type == FileType.File
        }

    def folders(self) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        system, root = self._connect()
        found = system.get_file_info(FileSelector(root, allow_not_found=True))
        return [info.base_name for info in found if info.type == FileType.Directory]

    def info(self, name: str) -> ObjectInfo | None:
        from pyarrow.fs import FileType

        system, root = self._connect()
        found = system.get_file_info(f"{root}/{name}")
        is_there = found.type == FileType.File
        return ObjectInfo(found.size, found.mtime_ns or 0) if is_there else None

    def get(self, name: str, limit_bytes: int) -> bytes:
        system, root = self._connect()
        with system.open_input_stream(f"{root}/{name}") as stream:
            data: bytes = stream.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise OSError(f"`{name}` has more than {limit_bytes} bytes")
        return data

    def put(self, name: str, data: bytes) -> None:
        system, root = self._connect()
        path = f"{root}/{name}"
        try:
            _write(system, path, data)
        except FileNotFoundError:  # a store with real folders
            system.create_dir(path.rpartition("/")[0], recursive=True)
            _write(system, path, data)
        stored = self.info(name)
        if stored is None or stored.size_bytes != len(data):
            raise OSError(f"`{name}` is not whole in the store: {stored}")

    def delete(self, name: str) -> None:
        system, root = self._connect()
        system.delete_file(f"{root}/{name}")

    def _connect(self) -> tuple[FileSystem, str]:
        if self._connected is None:
            self._connected = _file_system(self._url)
        return self._connected


def _write(system: FileSystem, path: str, data: bytes) -> None:
    with system.open_output_stream(path) as stream:
        stream.write(data)


def _file_system(url: str) -> tuple[FileSystem, str]:
    """What reads and writes at a URL, and the path there."""
    import pyarrow as pa
    from pyarrow import fs

    parts = urlsplit(url)
    if parts.scheme == "s3":
        return _s3(url), f"{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
    try:
        system, path = fs.FileSystem.from_uri(url)
    except pa.ArrowInvalid:
        system, path = _by_fsspec(url)
    return system, path.rstrip("/")


def _s3(url: str) -> FileSystem:
    from pyarrow import fs

    parts = urlsplit(url)
    given = {k: v for k, v in parse_qsl(parts.query) if k in _S3_OPTIONS}
    options: dict[str, object] = {**_s3_environment(os.environ), **given}
    if "region" not in options and "endpoint_override" not in options:
        options["region"] = fs.resolve_s3_region(parts.netloc.rpartition("@")[2])
    if parts.username and parts.password:
        options |= {"access_key": parts.username, "secret_key": parts.password}
    # One request for each object; a store that does not answer is asked again by who waits for it.
    return fs.S3FileSystem(
        allow_delayed_open=True, connect_timeout=5, request_timeout=30, **options
    )


def _s3_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the variables of AWS say of region and endpoint."""
    found = {}
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if region:
        found["region"] = region
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        scheme, _, host = endpoint.partition("://")
        found |= {"scheme": scheme, "endpoint_override": host.rstrip("/")}
    return found


def _by_fsspec(url: str) -> tuple[FileSystem, str]:
    from pyarrow import fs

    core = require("fsspec.core", extra="fsspec")
    try:
        system, path = core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise RunError(f"`{shown(url)}` cannot be opened: {error}.") from error
    return fs.PyFileSystem(fs.FSSpecHandler(system)), path
