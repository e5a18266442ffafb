"""File systems that go wrong: wrappers around the real one, handed to writers and compactors."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter

from sonde.store.files import LocalFiles

OPERATIONS = (
    "create",
    "write",
    "fsync",
    "close",
    "link",
    "rename",
    "unlink",
    "mkdir",
    "sync_folder",
)


class QuickFiles(LocalFiles):
    """The real file system without waiting for the disk, for tests that are not about that."""

    def fsync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass


class CountingFiles:
    """The real file system, counting what is asked of it."""

    def __init__(self) -> None:
        self.real = LocalFiles()
        self.calls: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __getattr__(self, name: str):
        method = getattr(self.real, name)

        def call(*args):
            with self.lock:
                self.calls[name] += 1
                n = self.calls[name]
            return self.perform(name, n, method, args)

        return call

    def perform(self, name: str, n: int, method, args):
        return method(*args)


class FailingFiles(CountingFiles):
    """The k-th call (from 1) of one operation fails, and if `persistent` all later ones too.

    With `after`, the work is done all the same and the error comes on top, as on network mounts.
    """

    def __init__(self, operation, k, *, persistent=False, after=False, error=errno.EIO):
        super().__init__()
        self.operation, self.k, self.persistent, self.after = operation, k, persistent, after
        self.error = error
        self.failures = 0
        self.is_armed = True

    def perform(self, name, n, method, args):
        hit = name == self.operation and (n == self.k or (self.persistent and n >= self.k))
        if hit and self.is_armed:
            self.failures += 1
            if self.after or name == "close":
                method(*args)
            raise OSError(self.error, os.strerror(self.error))
        return method(*args)


class FullFiles(CountingFiles):
    """A disk with so many bytes left; more can be given back later. Half a write may happen."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__()
        self.free_bytes = free_bytes

    def perform(self, name, n, method, args):
        if name == "write":
            size = len(args[1])
            if size > self.free_bytes:
                method(args[0], args[1][: size // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.free_bytes -= size
        return method(*args)


class SlowFiles(CountingFiles):
    """Every write takes its time."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.delay_s = delay_s

    def perform(self, name, n, method, args):
        if name == "write":
            time.sleep(self.delay_s)
        return method(*args)


class HeldFiles(CountingFiles):
    """A disk that hangs after `hold()`: writes wait until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.let_go.set()
        self.is_held = threading.Event()

    def hold(self) -> None:
        self.let_go.clear()

    def perform(self, name, n, method, args):
        if name == "write" and not self.let_go.is_set():
            self.is_held.set()
            assert self.let_go.wait(60)
        return method(*args)


class LinklessFiles(CountingFiles):
    """A file system without hard links."""

    def perform(self, name, n, method, args):
        if name == "link":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return method(*args)
