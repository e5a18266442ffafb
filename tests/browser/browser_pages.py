"""A server in a process of its own, and what happens on a page that looks at it."""

import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

AXE = Path(__file__, "../../../web/node_modules/axe-core/axe.min.js").resolve()
READY = '#sonde[data-ready="1"]'


def ready(page) -> None:
    """Wait until all that was asked for is drawn."""
    page.wait_for_selector(READY, state="attached")


def assert_accessible(page) -> None:
    """axe finds no serious violation on the page."""
    if not AXE.exists():
        pytest.skip("axe-core is not there: `npm ci` in web/ brings it")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        f"{v['id']}: {v['help']}: {[n['html'][:160] for n in v['nodes'][:3]]}"
        for v in found["violations"]
        if v["impact"] in {"serious", "critical"}
    ]
    assert not serious, serious


def ids(server) -> dict[str, str]:
    """Ids of the runs by name, from the list that the page gets."""
    opener = urllib.request.build_opener(
        urllib.request.HTTPCookieProcessor(), urllib.request.ProxyHandler({})
    )
    opener.open(server.address).close()
    with opener.open(f"{server.base}api/runs") as answer:
        return {run["name"]: run["id"] for run in json.load(answer)["spec"]["runs"]}


def viridis() -> list[tuple[int, ...]]:
    """The table of the page: its ends are known, its middle is compared with the map's own."""
    text = Path(__file__, "../../../web/src/core/lut.ts").resolve().read_text()
    table = text.partition("const VIRIDIS =")[2].partition('"')[2].partition('"')[0]
    colours = [tuple(bytes.fromhex(table[i : i + 6])) for i in range(0, len(table), 6)]
    assert len(colours) == 256
    assert (colours[0], colours[128], colours[255]) == ((68, 1, 84), (33, 145, 140), (253, 231, 37))
    return colours


@dataclass
class Serving:
    """A server in a process of its own."""

    folder: Path
    address: str
    process: subprocess.Popen

    @property
    def base(self) -> str:
        return self.address.partition("?")[0]

    @property
    def port(self) -> int:
        return urlsplit(self.address).port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.process.stdout.closed:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def serve(folder, *arguments, port=0) -> Serving:
    """`sonde view`, as a user would start it; returns once it has printed its address."""
    process = subprocess.Popen(
        [
            sys.executable,
            *("-m", "sonde", "view", str(folder), "--no-browser", "--port", str(port), *arguments),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if found := re.search(r"http://\S+", line):
            return Serving(Path(folder), found.group(), process)
    raise AssertionError(f"the server ended with {process.wait()}")


@dataclass
class Seen:
    """What went wrong on a page, and where its requests went."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    is_forgiving: bool = False
    """True while the server is away on purpose."""


def watch_page(page) -> Seen:
    seen = Seen()

    def note(text):
        if not seen.is_forgiving:
            seen.errors.append(text)

    def on_request(request):
        if not request.url.startswith(("data:", "blob:")):  # what the page made itself
            seen.hosts.add(urlsplit(request.url).netloc)
        seen.requests.append(request.url)

    def on_failed(request):
        # A question that became pointless is cancelled; a stream ends with its page.
        if "ERR_ABORTED" not in (request.failure or ""):
            note(f"failed: {request.url} {request.failure}")

    page.on("pageerror", lambda e: note(f"page error: {e}"))
    page.on("console", lambda m: note(f"{m.type}: {m.text}") if m.type == "error" else None)
    page.on("request", on_request)
    page.on("requestfailed", on_failed)
    page.on("response", lambda r: note(f"{r.status}: {r.url}") if r.status >= 400 else None)
    return seen
