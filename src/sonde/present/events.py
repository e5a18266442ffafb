"""The herald: tells pages that a run has advanced. Never what: they ask for what they show.

One listing of files a second serves all pages that listen, and none is taken while no page
does. Only runs whose files changed are asked how far they have come.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, TypedDict

from sonde.present.workers import Workers

LOOK_S: Final = 1.0
_STILL_HERE_S: Final = 15.0
_RETRY_MS: Final = 2000


class PlainState(TypedDict):
    """A `State` as plain JSON."""

    token: str
    list_version: str
    changed: bool
    runs: list[object]


class RunEvents:
    """Follows the runs that a page listens to."""

    def __init__(self, workers: Workers, is_ending: Callable[[], bool] = lambda: False) -> None:
        self._workers = workers
        self._is_ending = is_ending
        self._turn = asyncio.Lock()
        self._looked_s = -LOOK_S
        self._stamps: dict[str, str] = {}
        self._states: dict[str, object] = {}
        self._list_version = ""
        self._asked: dict[str, float] = {}

    async def state(self, runs: Sequence[str], since: str = "") -> PlainState:
        """A `State` as plain JSON, not older than a look; without runs if `since` is current."""
        await self._look(runs)
        known = [self._states[run] for run in runs if run in self._states]
        told = json.dumps([self._list_version, known])
        token = f"{zlib.crc32(told.encode()):08x}"
        changed = token != since
        return {
            "token": token,
            "list_version": self._list_version,
            "changed": changed,
            "runs": known if changed else [],
        }

    async def events(self, runs: Sequence[str]) -> AsyncIterator[bytes]:
        """Server-sent events: one at once, then one whenever something advanced, until we end."""
        yield f"retry: {_RETRY_MS}\n\n".encode()
        loop = asyncio.get_running_loop()
        token, spoke_s = "", loop.time()
        while not self._is_ending():
            found = await self.state(runs, token)
            if found["changed"]:
                token, spoke_s = found["token"], loop.time()
                text = json.dumps(found, separators=(",", ":"))
                yield f"event: state\nid: {token}\ndata: {text}\n\n".encode()
            elif loop.time() - spoke_s > _STILL_HERE_S:
                spoke_s = loop.time()
                yield b": still here\n\n"
            await asyncio.sleep(LOOK_S)

    async def _look(self, runs: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        async with self._turn:
            now_s = loop.time()
            is_new = any(run not in self._asked for run in runs)
            self._asked.update(dict.fromkeys(runs, now_s))
            if now_s - self._looked_s < LOOK_S * 0.9 and not is_new:
                return
            self._looked_s = now_s
            self._asked = {r: s for r, s in self._asked.items() if now_s - s < 60 * LOOK_S}
            await self._refresh(list(self._asked))

    async def _refresh(self, runs: Sequence[str]) -> None:
        reply = await self._workers.list({"view": "stamps", "runs": list(runs)})
        if reply.status != 200:
            return
        self._list_version = str(reply.head["list_version"])
        stamps = reply.head["stamps"]
        for run in [r for r in self._states if r not in stamps]:
            del self._states[run]
            self._stamps.pop(run, None)
        for run, stamp in stamps.items():
            if self._stamps.get(run) == stamp:
                continue
            said = await self._workers.read(run, {"view": "progress"})
            if said.status == 200:
                self._states[run] = said.head["state"]
                self._stamps[run] = stamp
            elif said.status not in {503, 504}:
                # It cannot be read. It may be later: then its files will have changed.
                self._states[run] = {
                    "id": run,
                    "status": "unknown",
                    "last_step": None,
                    "version": f"{said.status}-{stamp}",
                }
                self._stamps[run] = stamp
