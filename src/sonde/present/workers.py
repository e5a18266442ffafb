"""Workers: the processes that read runs, started when they are needed and replaced when they die.

Questions about one run go to one worker, so that it is opened once. Each worker answers one
question at a time, and lets quick ones go before those that read many rows; a question that takes
too long costs its worker the life.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Final

from sonde import _python
from sonde.present.messages import ReplyHead, WorkerRequest

_MAX_WAITING: Final = 64
_GRACE_S: Final = 1.0
_MAX_HOMES: Final = 10_000
_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",  # else each thread reserves memory of its own
}
_READS_MUCH: Final = frozenset(
    {"heat", "kymograph", "movers", "tint", "variable", "compare", "paired_heat", "table"}
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker said: `head["status"]` is that of HTTP."""

    head: ReplyHead
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head["status"])


class Worker:
    """One process, replaced when it dies or grows. It starts with the first question."""

    def __init__(self, folder: str, timeout_s: float, *, soft_limit: int | None = None) -> None:
        limit = () if soft_limit is None else (str(soft_limit),)
        self._command = _python.command("sonde.present.worker", folder, *limit)
        self.timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._turn_of_long = asyncio.Lock()
        self.waiting = 0

    async def ask(self, request: WorkerRequest) -> Reply:
        """The answer, or a reply that says what went wrong."""
        if self.waiting >= _MAX_WAITING:
            return _refused(503, "busy", "Too many questions at once. Try again in a moment.")
        self.waiting += 1
        try:
            if request["view"] not in _READS_MUCH:
                async with self._turn:
                    return await self._ask(request)
            async with self._turn_of_long, self._turn:  # one of these at a time is in the queue
                return await self._ask(request)
        finally:
            self.waiting -= 1

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _GRACE_S)
        except TimeoutError:
            await _end(process)

    async def _ask(self, request: WorkerRequest) -> Reply:
        for is_last in (False, True):
            process = await self._running()
            try:
                reply = await asyncio.wait_for(_exchange(process, request), self.timeout_s)
                if reply.head.get("is_full"):
                    await self._replace(process)
                return reply
            except TimeoutError:
                await self._drop(process)
                return _refused(
                    504,
                    "timeout",
                    f"This question takes longer than {self.timeout_s:.0f} s. Ask for less.",
                )
            except (OSError, asyncio.IncompleteReadError, ValueError):
                await self._drop(process)
                if is_last:
                    break
            except BaseException:
                # The asker went away in the middle: what is in the pipes has no reader.
                await asyncio.shield(self._drop(process))
                raise
        return _refused(422, "damaged", "Reading this run ended the process that read it.")

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=_python.environment(**_ENVIRONMENT),
                start_new_session=True,  # Ctrl-C is for the server; it ends its workers itself
            )
        return self._process

    async def _replace(self, process: asyncio.subprocess.Process) -> None:
        """Start another process now, so that its imports are done before the next question."""
        await self._drop(process)
        with contextlib.suppress(OSError):  # the next question tries again
            await self._running()

    async def _drop(self, process: asyncio.subprocess.Process) -> None:
        if self._process is process:
            self._process = None
        await _end(process)


class Workers:
    """A clerk for the list of runs, and readers for what is in them."""

    def __init__(self, folder: str, *, readers: int = 2, timeout_s: float = 30.0) -> None:
        self._clerk = Worker(folder, timeout_s)
        self._readers = [Worker(folder, timeout_s) for _ in range(readers)]
        self._homes: dict[str, int] = {}

    async def warm_up(self) -> None:
        """Start what the first visit needs, so that it does not wait for imports."""
        listing = self._clerk.ask({"view": "stamps", "runs": []})
        await asyncio.gather(listing, self._readers[0].ask({"view": "warm_up"}))

    async def list(self, request: WorkerRequest) -> Reply:
        """Ask about the folder as a whole."""
        return await self._clerk.ask(request)

    async def read(self, run: str, request: WorkerRequest) -> Reply:
        """Ask about one run."""
        if len(self._homes) > _MAX_HOMES:
            self._homes.clear()
        at = self._homes.setdefault(run, len(self._homes) % len(self._readers))
        return await self._readers[at].ask({**request, "run": run})

    async def close(self) -> None:
        await asyncio.gather(*(w.close() for w in (self._clerk, *self._readers)))


async def _exchange(process: asyncio.subprocess.Process, request: WorkerRequest) -> Reply:
    assert process.stdin is not None
    assert process.stdout is not None
    text = json.dumps(request).encode("ascii")
    process.stdin.write(len(text).to_bytes(4, "little") + text)
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(4), "little")
    head = json.loads(await process.stdout.readexactly(size))
    return Reply(head, await process.stdout.readexactly(head["size"]))


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _refused(status: int, code: str, message: str) -> Reply:
    return Reply({"status": status, "code": code, "message": message}, b"")
