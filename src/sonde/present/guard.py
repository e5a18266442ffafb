"""The guard: stands before every address of the server and decides who may ask.

In this order, for every request whatever its address: it is plain HTTP whose length is stated in
one way; it was sent to a name that is ours (or another site could reach us through a name of its
own); it does not come from another site's page; it is `GET` or `HEAD`; it carries the token. The
guard wraps the whole application, so an address that is added later is behind it, too.

Where the rules allow guests, pages of other origins may ask if they bring the token in a header: a
notebook's page asks the kernel so. Cookies do not count for them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[Scope, Send, int, str, str], Awaitable[None]]

METHODS: Final = ("GET", "HEAD")
MAX_QUERY_BYTES: Final = 16 << 10
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")

_OTHER_NAME: Final = (
    "This server does not answer to that name. "
    "If it is yours, start it with: sonde view --allow-host NAME:PORT"
)

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; worker-src 'self' blob:; img-src 'self' data: blob:; "
        "style-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """Whom the guard lets through. `token` is None when everyone on this machine may ask.

    `prefix` (`/a/b`) is taken off addresses that begin with it. With `has_guests`, pages of other
    origins may ask if they bring the token in a header.
    """

    token: str | None
    hosts: frozenset[str]
    cookie: str
    prefix: str = ""
    has_guests: bool = False

    @staticmethod
    def of(
        *,
        token: str | None,
        port: int,
        host: str,
        allowed: Iterable[str] = (),
        prefix: str = "",
        has_guests: bool = False,
    ) -> Rules:
        """Rules for a server at that host and port. An allowed name without a port gets ours."""
        names = [*LOOPBACK, *([host] if host not in {"0.0.0.0", "::", ""} else []), *allowed]  # noqa: S104
        hosts = set()
        for name in names:
            plain = f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name
            hosts |= {plain.lower()} if _has_port(plain) else {f"{plain}:{port}".lower()}
            if port == 80 and not _has_port(plain):
                hosts.add(plain.lower())
        return Rules(token, frozenset(hosts), f"sonde-{port}", prefix, has_guests)

    def cookie_value(self) -> str:
        """What the cookie holds: proof of having had the token, not the token."""
        assert self.token is not None
        return hmac.new(self.token.encode(), b"sonde cookie", hashlib.sha256).hexdigest()


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: App, rules: Rules, refuse: Refuse) -> None:
        self._app = app
        self._rules = rules
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        is_guest = self._rules.has_guests and self._has_bearer(scope)
        guarded = _with_headers(_for_guest(send, scope) if is_guest else send)
        scope = self._below_prefix(scope)
        is_preflight = self._rules.has_guests and scope["method"] == "OPTIONS"
        problem = self._problem(scope, is_guest=is_guest or is_preflight)
        if problem is not None:
            await self._refuse(scope, guarded, *problem)
        elif is_preflight:
            await _answer_preflight(scope, send)
        elif not scope["path"]:
            await _add_slash(scope, guarded)
        elif self._brings_token(scope):
            await self._welcome(scope, guarded)
        elif self._rules.token is not None and not self._is_known(scope):
            await self._refuse(
                scope,
                guarded,
                401,
                "unauthorized",
                "This server needs its token: open the address that `sonde view` printed.",
            )
        else:
            await self._app(scope, receive, guarded)

    def _below_prefix(self, scope: Scope) -> Scope:
        """With the prefix taken off; a path that is the prefix itself becomes empty."""
        prefix, path = self._rules.prefix, scope["path"]
        if not prefix or not (path == prefix or path.startswith(f"{prefix}/")):
            return scope
        return {**scope, "path": path[len(prefix) :]}

    def _problem(self, scope: Scope, *, is_guest: bool) -> tuple[int, str, str] | None:
        if _header(scope, b"transfer-encoding") and _header(scope, b"content-length"):
            # A proxy before us may take the other one, and the rest for another's request.
            return 400, "bad_request", "A request has a length or is sent in chunks, not both."
        hosts = _header(scope, b"host")
        if len(hosts) != 1 or hosts[0].lower() not in self._rules.hosts:
            return 403, "forbidden", _OTHER_NAME
        if not is_guest and self._is_of_another_page(scope, hosts[0]):
            return 403, "forbidden", "Other sites may not ask."
        allowed = (*METHODS, "OPTIONS") if is_guest else METHODS
        if scope["method"] not in allowed:
            return 405, "method_not_allowed", "Only GET and HEAD are answered."
        if len(scope.get("query_string", b"")) > MAX_QUERY_BYTES:
            return 400, "bad_request", "This question is too long."
        return None

    def _is_of_another_page(self, scope: Scope, host: str) -> bool:
        origins = _header(scope, b"origin")
        own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}
        if len(origins) > 1 or (origins and origins[0].lower() not in own):
            return True
        return _is_from_elsewhere(scope)

    def _brings_token(self, scope: Scope) -> bool:
        return scope["path"] == "/" and any(name == "token" for name, _ in _query(scope))

    async def _welcome(self, scope: Scope, send: Send) -> None:
        """A visit with the token in the address: a cookie, and on to the address without it."""
        given = next(value for name, value in _query(scope) if name == "token")
        token = self._rules.token
        if token is not None and not _equal(given, token):
            await self._refuse(scope, send, 401, "unauthorized", "This is not the token.")
            return
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store")]
        if token is not None:
            cookie = f"{self._rules.cookie}={self._rules.cookie_value()}"
            # Without a path it is for what lies beside this address, whatever prefix it is under.
            cookie += "; HttpOnly; SameSite=Strict"
            headers.append((b"set-cookie", cookie.encode("ascii")))
        # A browser that comes from another page does not send a strict cookie along a redirect;
        # it does when our own page takes it further.
        page = (
            b'<!doctype html><html lang="en"><head><meta charset="utf-8">'
            b'<meta http-equiv="refresh" content="0; url=./"><title>Sonde</title></head>'
            b'<body><a href="./">Sonde</a></body></html>'
        )
        is_direct = _header(scope, b"sec-fetch-site") in ([], ["none"], ["same-origin"])
        if is_direct:
            headers.append((b"location", b"./"))
        await send(
            {
                "type": "http.response.start",
                "status": 303 if is_direct else 200,
                "headers": [*headers, (b"content-length", str(len(page)).encode())],
            }
        )
        await send(
            {"type": "http.response.body", "body": page if scope["method"] == "GET" else b""}
        )

    def _has_bearer(self, scope: Scope) -> bool:
        token = self._rules.token
        for header in _header(scope, b"authorization"):
            scheme, _, given = header.partition(" ")
            if token is not None and scheme.lower() == "bearer" and _equal(given, token):
                return True
        return False

    def _is_known(self, scope: Scope) -> bool:
        if self._has_bearer(scope):
            return True
        for header in _header(scope, b"cookie"):
            try:
                found = SimpleCookie(header).get(self._rules.cookie)
            except CookieError:
                continue
            if found is not None and _equal(found.value, self._rules.cookie_value()):
                return True
        return False


def _for_guest(send: Send, scope: Scope) -> Send:
    """Let the page that asked read the response."""
    origin = _header(scope, b"origin")

    async def shared(message: Message) -> None:
        if message["type"] == "http.response.start" and len(origin) == 1:
            own = [
                (b"access-control-allow-origin", origin[0].encode("latin-1")),
                (b"access-control-expose-headers", b"retry-after"),
                (b"vary", b"origin"),
            ]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        await send(message)

    return shared


async def _answer_preflight(scope: Scope, send: Send) -> None:
    """Say that a page of another origin may bring the token. Whether it has it is seen later."""
    origin = _header(scope, b"origin")
    headers = [
        (b"access-control-allow-methods", b"GET"),
        (b"access-control-allow-headers", b"authorization"),
        (b"access-control-allow-private-network", b"true"),
        (b"access-control-max-age", b"600"),
        (b"vary", b"origin"),
        (b"content-length", b"0"),
    ]
    if len(origin) == 1:
        headers.append((b"access-control-allow-origin", origin[0].encode("latin-1")))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _add_slash(scope: Scope, send: Send) -> None:
    """From `/a/b` to `/a/b/`: what is beside the page lies below it."""
    query = scope.get("query_string", b"")
    last = scope.get("raw_path", b"").rpartition(b"/")[2]
    to = b"./" + last + b"/" + (b"?" + query if query else b"")
    headers = [(b"location", to), (b"content-length", b"0"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _is_from_elsewhere(scope: Scope) -> bool:
    """Whether a browser says that another site's page asks. Following a link to us is fine."""
    if _header(scope, b"sec-fetch-site") in ([], ["none"], ["same-origin"]):
        return False
    is_visit = _header(scope, b"sec-fetch-mode") == ["navigate"]
    is_top = _header(scope, b"sec-fetch-dest") in (["document"], [])
    return not (is_visit and is_top and scope["path"] == "/")


def _with_headers(send: Send) -> Send:
    """Add what every response must say, unless it says so itself."""

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            present = {name.lower() for name, _ in headers}
            headers += [
                (name.encode("ascii"), value.encode("ascii"))
                for name, value in HEADERS.items()
                if name.encode("ascii") not in present
            ]
            message = {**message, "headers": headers}
        await send(message)

    return guarded


def _header(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _query(scope: Scope) -> list[tuple[str, str]]:
    text = scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=200)
    except ValueError:
        return []


def _equal(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))


def _has_port(host: str) -> bool:
    return host.rpartition("]")[2].count(":") == 1
