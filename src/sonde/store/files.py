"""The few things the store asks of a file system, and how a file appears whole or not at all.

Writers and compactors get a `Files` object and touch the disk through nothing else, so that a test
can hand them one that fails, stalls or fills up.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final, Protocol

from sonde._signals import IGNORING_OS, pass_on

NO_HARD_LINKS: Final = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES}
)
"""How a file system says that it has no hard links."""

_NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP})


class Files(Protocol):
    """What the writing side needs. Every method may raise OSError."""

    def create(self, path: str) -> int:
        """Open a file that must not exist yet, for writing."""

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of `data` and say how much."""

    def fsync(self, fd: int) -> None: ...

    def close(self, fd: int) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name; never overwrites."""

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None:
        """Make one folder; no error if it exists."""

    def exists(self, path: str) -> bool:
        """Whether the name is taken. Raises when that cannot be told."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""


class LocalFiles:
    """A local or mounted POSIX file system."""

    def create(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)

    def exists(self, path: str) -> bool:
        try:
            os.lstat(path)
        except FileNotFoundError:
            return False
        return True

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(fd)


class UnsureError(OSError):
    """It cannot be told whether the file got its name: the name must not be used again."""


def publish(files: Files, folder: str, name: str, data: bytes) -> OSError | None:
    """Make `data` durable under `folder/name`, whole or not at all, never over another file.

    A name that is taken counts as done: names of segments hold a checksum of the content, and of
    the other files the first writer wins. Returns the error of a step after the file had its name
    (it is there, but may not survive a power cut), raises if it has no name.
    """
    temporary = temporary_name(folder, name)
    try:
        write_new(files, temporary, data)
        _name(files, temporary, os.path.join(folder, name))
    finally:
        with IGNORING_OS:
            files.unlink(temporary)
    try:
        files.sync_folder(folder)
    except OSError as error:
        pass_on(error)
        return error
    return None


def replace(files: Files, folder: str, name: str, data: bytes) -> None:
    """Put `data` in place of `folder/name`: a reader sees the old or the new, whole."""
    temporary = temporary_name(folder, name)
    try:
        write_new(files, temporary, data)
        files.rename(temporary, os.path.join(folder, name))
    except OSError:
        with IGNORING_OS:
            files.unlink(temporary)
        raise


def temporary_name(folder: str, name: str) -> str:
    """A name that no reader takes for the real thing: hidden, and not ending like it."""
    stem = os.path.splitext(name)[0]
    return os.path.join(folder, f".tmp-{os.urandom(6).hex()}-{stem}")


def write_new(files: Files, path: str, data: bytes) -> None:
    """Make a file that does not exist yet, durable but for its name."""
    fd = files.create(path)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[files.write(fd, rest) :]
        files.fsync(fd)
    finally:
        files.close(fd)


def _name(files: Files, source: str, target: str) -> None:
    try:
        files.link(source, target)
    except FileExistsError:
        return
    except OSError as error:
        pass_on(error)
        if _is_there(files, target, error):
            return
        if error.errno not in NO_HARD_LINKS:
            raise
        _rename(files, source, target)


def _rename(files: Files, source: str, target: str) -> None:
    try:
        files.rename(source, target)
    except OSError as error:
        pass_on(error)
        if not _is_there(files, target, error):
            raise


def _is_there(files: Files, path: str, cause: OSError) -> bool:
    """Whether a call that failed has done its work all the same, as happens on network mounts."""
    try:
        return files.exists(path)
    except OSError as error:
        raise UnsureError(error.errno, error.strerror, path) from cause
