"""The server: the page, and the API behind it. Reads nothing itself, writes nothing at all.

    app = make_app(folder, rules)       # an ASGI application
    serve(folder, port=7007)            # until it is stopped

A route parses a question, hands it to a worker and passes the bytes on. `web/API.md` is the
contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sonde._errors import SondeError
from sonde._require import require
from sonde._version import VERSION
from sonde.present import bundle
from sonde.present.compression import accepts_gzip, compressed, compressed_file
from sonde.present.events import RunEvents
from sonde.present.guard import App, Guard, Rules, Scope, Send, new_token
from sonde.present.messages import WorkerRequest
from sonde.present.timeouts import MAX_CONNECTIONS, patient_protocol
from sonde.present.workers import Reply, Workers
from sonde.views import envelope
from sonde.views.questions import QuestionError, StateQuestion, parse
from sonde.views.routes import ROUTES, Route
from sonde.views.runs.run_list import HOW_TO_RECORD
from sonde.views.specs import Failure, Problem, Server

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response

    Endpoint = Callable[[Request], Awaitable[Response]]

PORT: Final = 7007
_PREFIX: Final = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9_.~-]*(/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)*")

_NO_PAGE: Final = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sonde</title></head>
<body><h1>Sonde</h1><p>The page was not built into this installation. The API is at
<a href="api/runs">api/runs</a>.</p></body></html>
"""

_SAY: Final = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sonde</title></head>
<body><h1>Sonde</h1><p>%s</p></body></html>
"""


def make_app(
    folder: str,
    rules: Rules,
    *,
    shown_as: str | None = None,
    timeout_s: float = 30.0,
    workers: Workers | None = None,
    is_ending: Callable[[], bool] = lambda: False,
) -> App:
    """The application for the runs in a folder, behind its guard.

    `workers` read the runs, new ones by default. `is_ending` says whether the server is to stop:
    streams, which would last for ever, end then.
    """
    starlette = require("starlette.applications", extra="view")
    routing = require("starlette.routing", extra="view")
    workers = workers or Workers(folder, timeout_s=timeout_s)
    herald = RunEvents(workers, is_ending)
    about = _About(shown_as or folder, time.time() * 1e3)

    @contextlib.asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        warming = asyncio.create_task(workers.warm_up())
        try:
            yield
        finally:
            warming.cancel()
            await workers.close()

    routes = [
        routing.Route("/", _static_endpoint("index.html"), methods=["GET"]),
        *(
            routing.Route(f"/{name}", _static_endpoint(name), methods=["GET"])
            for name in bundle.names()
        ),
        routing.Route("/api/events", _events_endpoint(herald), methods=["GET"]),
        routing.Route("/api/state", _state_endpoint(herald), methods=["GET"]),
        routing.Route("/api/server", _server_endpoint(about), methods=["GET"]),
        *(
            routing.Route(f"/api/{route.name}", _view_endpoint(route, workers), methods=["GET"])
            for route in ROUTES.values()
            if route.name not in {"state", "server"}
        ),
    ]
    handlers = {404: _not_found, 405: _not_found, Exception: _failed}
    app = starlette.Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, rules, _refuse)


def serve(
    folder: str,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    prefix: str = "",
    shown_as: str | None = None,
    on_start: Callable[[str], None] = lambda _address: None,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve the runs in a folder until interrupted.

    Args:
        folder: Of runs, or a run. It may be empty or not exist yet.
        host: Where to listen.
        port: Where to listen; 0 for any that is free. If it is taken, one of the next ten.
        token: What visitors must bring; None serves everyone who reaches the address.
        allowed_hosts: Names besides those of this machine's loopback under which we are reached.
        prefix: A path below which we are reached, also when a proxy does not take it off.
        shown_as: How the folder is called on the page.
        on_start: Called with the address, token and all, as soon as it answers.
        on_stop: Called when it answers no more: the signal that stopped it may end the process.
    """
    uvicorn = require("uvicorn", extra="view")
    listening = listen(host, port)
    actual = int(listening.getsockname()[1])
    rules = Rules.of(
        token=token, port=actual, host=host, allowed=allowed_hosts, prefix=checked_prefix(prefix)
    )
    config = uvicorn.Config(
        make_app(folder, rules, shown_as=shown_as, is_ending=lambda: bool(server.should_exit)),
        access_log=False,  # addresses may hold the token
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS + 50,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=3,
        ws="none",
        http=patient_protocol(),
    )
    where = address(host, actual, token, rules.prefix)
    server = _told(uvicorn.Server(config), lambda: on_start(where), on_stop)
    server.run(sockets=[listening])


def checked_prefix(prefix: str) -> str:
    """`/a/b` for `a/b/`: with a slash before, none after; empty for the top."""
    plain = prefix.strip("/")
    if plain and not _PREFIX.fullmatch(plain):
        raise SondeError(f"`--prefix` must be a path such as `/sonde`, got `{prefix}`.")
    return f"/{plain}" if plain else ""


def address(host: str, port: int, token: str | None, prefix: str = "") -> str:
    """Where to go with a browser."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104
    name = f"[{name}]" if ":" in name and not name.startswith("[") else name
    return f"http://{name}:{port}{prefix}/" + (f"?token={token}" if token else "")


def fresh_token() -> str:
    """A token that cannot be guessed."""
    return new_token()


class _About:
    """What the server says about itself."""

    def __init__(self, folder: str, started_ms: float) -> None:
        self.folder = folder
        self.started_ms = started_ms

    def spec(self) -> Server:
        return Server(
            version=VERSION,
            api=envelope.API,
            folder=self.folder[:500],
            page="index.html" in bundle.names(),
            started_ms=self.started_ms,
            how_to_record=HOW_TO_RECORD,
        )


# -- endpoints ------------------------------------------------------------------------------------


def _view_endpoint(route: Route, workers: Workers) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        pairs = request.query_params.multi_items()
        try:
            question: Any = parse(route.question, pairs)  # of the route
        except QuestionError as error:
            return _failure(400, "bad_request", str(error))
        asked: WorkerRequest = {"view": route.name, "question": pairs}
        if route.of_run:
            reply = await workers.read(question.run, asked)
        else:
            reply = await workers.list(asked)
        return await _response(reply, request.headers.get("accept-encoding"))

    return endpoint


def _state_endpoint(herald: RunEvents) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            question = parse(StateQuestion, request.query_params.multi_items())
        except QuestionError as error:
            return _failure(400, "bad_request", str(error))
        found = await herald.state(question.run, question.since)
        return _json(200, {**_frame("state"), "spec": found})

    return endpoint


def _events_endpoint(herald: RunEvents) -> Endpoint:
    responses = require("starlette.responses", extra="view")

    async def endpoint(request: Request) -> Response:
        try:
            question = parse(StateQuestion, request.query_params.multi_items())
        except QuestionError as error:
            return _failure(400, "bad_request", str(error))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":
            answer: Response = responses.Response(
                b"", media_type="text/event-stream", headers=headers
            )
        else:
            answer = responses.StreamingResponse(
                herald.events(question.run), media_type="text/event-stream", headers=headers
            )
        return answer

    return endpoint


def _server_endpoint(about: _About) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        if request.query_params:
            return _failure(400, "bad_request", "This question has no parameters.")
        kind, body = envelope.pack("server", about.spec())
        return _bytes(200, kind, body)

    return endpoint


def _static_endpoint(name: str) -> Endpoint:
    kind = bundle.TYPES[name.rpartition(".")[2]]

    async def endpoint(request: Request) -> Response:
        found = bundle.read(name)
        if found is None:
            return _bytes(200, bundle.TYPES["html"], _NO_PAGE)
        packed = None
        if accepts_gzip(request.headers.get("accept-encoding")):
            packed = compressed_file(found, kind)
        tag = f'"{zlib.crc32(found):08x}-{len(found):x}{"-gz" if packed else ""}"'
        headers = {"cache-control": "no-cache", "etag": tag, "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == tag:
            return _bytes(304, kind, b"", headers)
        if packed is not None:
            return _bytes(200, kind, packed, {**headers, "content-encoding": "gzip"})
        return _bytes(200, kind, found, headers)

    return endpoint


# -- responses ------------------------------------------------------------------------------------


async def _response(reply: Reply, accept: str | None) -> Response:
    if reply.status == 200:
        kind = reply.head["type"]
        packed = await compressed(reply.body, kind, accept)
        if packed is None:
            return _bytes(200, kind, reply.body, {"vary": "accept-encoding"})
        headers = {"vary": "accept-encoding", "content-encoding": "gzip"}
        return _bytes(200, kind, packed, headers)
    return _failure(reply.status, reply.head["code"], reply.head["message"])


def _failure(status: int, code: str, message: str) -> Response:
    failure = Failure(VERSION, Problem(status, code, message[:1000]))
    headers = {"retry-after": "1"} if status == 503 else {}
    return _json(status, envelope.to_plain(failure, [], []), headers)


def _json(status: int, value: object, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return _bytes(status, envelope.JSON_TYPE, body, headers)


def _bytes(
    status: int, kind: str, body: bytes, headers: Mapping[str, str] | None = None
) -> Response:
    responses = require("starlette.responses", extra="view")
    made: Response = responses.Response(
        body, status, {"cache-control": "no-store", **(headers or {}), "content-type": kind}
    )
    return made


def _frame(view: str) -> dict[str, object]:
    return {"api": envelope.API, "version": VERSION, "view": view, "run": None}


async def _not_found(_request: Request, error: Exception) -> Response:
    if getattr(error, "status_code", 404) == 405:
        return _failure(405, "method_not_allowed", "Only GET and HEAD are answered.")
    return _failure(404, "not_found", "There is nothing at this address.")


async def _failed(_request: Request, _error: Exception) -> Response:
    return _failure(500, "failed", "The server made a mistake. Its log says which.")


async def _refuse(scope: Scope, send: Send, status: int, code: str, message: str) -> None:
    """What the guard says to those whom it does not let through."""
    is_page = scope.get("path") == "/" and status in {401, 403}
    failure = Failure(VERSION, Problem(status, code, message))
    body = (
        _SAY % message.replace("<", "&lt;").encode()
        if is_page
        else json.dumps(envelope.to_plain(failure, [], [])).encode()
    )
    kind = bundle.TYPES["html"] if is_page else envelope.JSON_TYPE
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    if status == 400:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send(
        {"type": "http.response.body", "body": b"" if scope.get("method") == "HEAD" else body}
    )


# -- listening ------------------------------------------------------------------------------------


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, or at one of the next ten ports; 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for candidate in range(port, port + 11) if port else [0]:
        # With the protocol named, asyncio lets small parts of an answer go at once: 40 ms sooner.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(128)
        except OSError as error:
            listening.close()
            last = error
            continue
        return listening
    raise SondeError(f"Cannot listen on {host}:{port}: {last}. Choose another `--port`.")


def _told(
    server: uvicorn.Server, start: Callable[[], None], stop: Callable[[], None]
) -> uvicorn.Server:
    """Return the server (a `uvicorn.Server`); it calls these when it has started and stopped."""
    startup, shutdown = server.startup, server.shutdown

    async def told_start(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        start()

    async def told_stop(sockets: list[socket.socket] | None = None) -> None:
        await shutdown(sockets)
        stop()

    vars(server).update(startup=told_start, shutdown=told_stop)
    return server
