"""The server inside a kernel: answers the widgets of a notebook while a cell runs.

It is the server of `sonde view` on a thread of its own, and runs are read in worker processes as
there, so neither a training cell nor a question waits for the other. Widgets reach it by HTTP with
a token; where a browser cannot (a kernel on another machine), the kernel pushes the answers that
are on screen.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from sonde._errors import SondeError
from sonde._require import require
from sonde._version import VERSION
from sonde.present.archive import AnswerBlock, Archive, Question
from sonde.present.events import PlainState, RunEvents
from sonde.present.guard import App, Receive, Rules, Scope, Send, new_token
from sonde.present.messages import WorkerRequest
from sonde.present.server import listen, make_app
from sonde.present.timeouts import patient_protocol
from sonde.present.workers import Reply, Workers
from sonde.views import envelope
from sonde.views.questions import (
    HeatQuestion,
    LinesQuestion,
    MoversQuestion,
    RunQuestion,
    parse,
)
from sonde.views.routes import ROUTES

if TYPE_CHECKING:
    from uvicorn import Server

_START_S: Final = 30.0
_VISITED_S: Final = 8.0
"""A browser that asked by HTTP within this time is not sent answers as well."""

_PAUSE_S: Final = 1.0
_MOST_BYTES: Final = 16_000_000

Pushed = Callable[[Mapping[str, object], bytes | None], None]
"""Sends a message, with bytes or without, to a page."""


class KernelServer:
    """One for each folder of runs that a notebook shows; it ends with the kernel.

    With `is_open`, pages on this machine need no token. If the port is taken, one of the next ten.
    """

    def __init__(self, folder: str, *, port: int = 0, is_open: bool = False) -> None:
        self.folder = folder
        self.token = None if is_open else new_token()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._workers = Workers(folder, readers=1)
        self._ready = threading.Event()
        self._is_over = threading.Event()
        self._visited_s = float("-inf")
        self._listening = listen("127.0.0.1", port)
        self.port = int(self._listening.getsockname()[1])
        self._thread = threading.Thread(target=self._run, name="sonde-notebook", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise SondeError("The server for notebooks did not start.")
        atexit.register(self.close)

    @property
    def base(self) -> str:
        """Where a browser on this machine reaches it."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def is_visited(self) -> bool:
        """Whether a browser has asked by HTTP a moment ago."""
        return time.monotonic() - self._visited_s < _VISITED_S

    def call_later(self, coroutine: Coroutine[object, object, None]) -> Future[None]:
        """Run a coroutine on the thread of the server."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def state(self, run: str, since: str = "") -> PlainState:
        """How far a run has come, as the page hears it."""
        return await self._events.state([run], since)

    async def answer(self, view: str, question: Sequence[tuple[str, str]]) -> Reply:
        """The answer of a view."""
        request: WorkerRequest = {"view": view, "question": list(question)}
        run = dict(question).get("run")
        if run is None:
            return await self._workers.list(request)
        return await self._workers.read(run, request)

    def outlive(self, end: Callable[[], None]) -> None:
        """Keep the process when its program has ended, until this is closed or interrupted.

        Calls `end` in between. In a notebook, a program has no end.
        """

        def stay() -> None:
            threading.main_thread().join()
            if not self._is_over.is_set():
                end()
            self._is_over.wait()

        in_notebook = "ipykernel" in sys.modules
        threading.Thread(target=stay, name="sonde-outlive", daemon=in_notebook).start()

    def close(self) -> None:
        """End the server and its workers."""
        self._is_over.set()
        server = self._server
        if server is not None:
            server.should_exit = True
            self._thread.join(5)

    # -- on its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        uvicorn = require("uvicorn", extra="notebook")
        rules = Rules.of(
            token=self.token, port=self.port, host="127.0.0.1", has_guests=self.token is not None
        )
        app = make_app(self.folder, rules, workers=self._workers, is_ending=self._is_ending)
        config = uvicorn.Config(
            self._noting(app),
            access_log=False,
            log_level="warning",
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
            ws="none",
            http=patient_protocol(),
        )
        self._server = uvicorn.Server(config)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._loop = loop
        self._events = RunEvents(self._workers, self._is_ending)
        loop.call_soon(self._ready.set)
        loop.run_until_complete(self._server.serve(sockets=[self._listening]))

    def _is_ending(self) -> bool:
        return bool(self._server is not None and self._server.should_exit)

    def _noting(self, app: App) -> App:
        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["method"] == "GET":
                self._visited_s = time.monotonic()
            await app(scope, receive, send)

        return noted


_SERVERS: dict[str, KernelServer] = {}
_LOCK = threading.Lock()


def server_for(folder: str) -> KernelServer:
    """The server of a folder, started if it is the first to be asked for."""
    with _LOCK:
        found = _SERVERS.get(folder)
        if found is None:
            found = _SERVERS[folder] = KernelServer(folder)
        return found


class Pushing:
    """Pushes to one widget: that its run has advanced, and what is on screen if it cannot ask.

    `asked` is what a widget shows at first: while its kernel is busy, nothing is heard of what it
    shows later.
    """

    def __init__(
        self,
        server: KernelServer,
        run: str,
        asked: Sequence[Question],
        send: Pushed,
    ) -> None:
        self._server = server
        self._run = run
        self._first = [(view, one) for view, one in asked if view not in {"run", "search"}]
        self._send = send
        self._shown: list[Question] = []
        self._is_over = False
        server.call_later(self._follow())

    def show(self, questions: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
        """These are on screen, besides those at first."""
        self._shown = [
            (view, parse(ROUTES[view].question, pairs))
            for view, pairs in questions
            if view in ROUTES
        ]

    def answer(self, number: int, view: str, question: Sequence[tuple[str, str]]) -> None:
        """Answer a question that came through the kernel."""
        self._server.call_later(self._reply(number, view, question))

    def end(self) -> None:
        """Push no more."""
        self._is_over = True

    async def _follow(self) -> None:
        token = ""
        while not self._is_over:
            found = await self._server.state(self._run, token)
            if found["changed"]:
                token = found["token"]
                if not self._server.is_visited:
                    await self._push_answers(found)
                self._send({"kind": "state", "state": found}, None)
            await asyncio.sleep(_PAUSE_S)

    async def _push_answers(self, state: PlainState) -> None:
        """What is on screen, as one archive: a page takes from it what it would ask."""
        block = AnswerBlock()
        about_run = RunQuestion(run=self._run)
        reply = await self._server.answer("run", pairs_of(about_run))
        if reply.status != 200:
            return
        block.put_packed("run", about_run, reply.body)
        header = envelope.unpack(reply.body)["spec"]
        wanted = dict.fromkeys((*self._first, *_first_of(self._run, header), *self._shown))
        for view, question in wanted:
            reply = await self._server.answer(view, pairs_of(question))
            if reply.status == 200:
                block.put_packed(view, question, reply.body, getattr(question, "step", None))
        archive = Archive(_MOST_BYTES)
        archive.add(block)
        runs: list[Any] = state["runs"]  # JSON
        version = next((run["version"] for run in runs), "")
        about = {"made_ms": time.time() * 1e3, "version": version, "was_live": True}
        blocks = archive.named({**about, "holds": [], "left_out": []})
        self._send({"kind": "archive", "blocks": blocks}, None)

    async def _reply(self, number: int, view: str, question: Sequence[tuple[str, str]]) -> None:
        reply = await self._server.answer(view, question)
        if reply.status == 200:
            self._send({"kind": "answer", "id": number, "status": 200}, reply.body)
            return
        problem = {key: reply.head[key] for key in ("status", "code", "message")}
        body = json.dumps({"version": VERSION, "error": problem}).encode("ascii")
        self._send({"kind": "answer", "id": number, "status": reply.status}, body)


def _first_of(run: str, header: Mapping[str, Any]) -> list[Question]:
    """What the overview shows of a run that has come so far."""
    found: list[Question] = []
    if header["timeline"] is not None:
        found.append(("lines", LinesQuestion(run=run, name=(header["timeline"],), columns=2048)))
    if header["kind"] is not None:
        kind, stat = header["kind"], header["stat"]
        found.append(("heat", HeatQuestion(run=run, kind=kind, stat=stat, columns=1024)))
        found.append(("movers", MoversQuestion(run=run, kind=kind, stat=stat, limit=40)))
    return found


def pairs_of(question: Any) -> list[tuple[str, str]]:
    """A question as a page writes it: what differs from the defaults."""
    found: list[tuple[str, str]] = []
    for f in fields(question):
        value = getattr(question, f.name)
        if value == f.default or value is None:
            continue
        several = value if isinstance(value, tuple) else (value,)
        found += [(f.name, str(int(one) if isinstance(one, bool) else one)) for one in several]
    return found
