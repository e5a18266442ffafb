"""A server as a person starts it, in a process of its own, and runs for it to serve."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import psutil

from sonde.kernels.reference import sketch
from sonde.record import (
    CallPort,
    GraphEdge,
    GraphModule,
    GraphNode,
    GraphPart,
    NumberBatch,
    Site,
    SiteInfo,
    SketchBatch,
)
from sonde.sketch import concatenate
from sonde.store import Writer

START_S = 60

NAMES = [
    "plain",
    "<script>alert(1)</script>",
    "\"'`><img src=x onerror=alert(1)>{{7*7}}${7*7}",
    "w" * 10_000,
    "line\nbreak\ttab\x00nul\x1b[31mred\x07",
    "../../../etc/passwd",
    "%2e%2e%2fetc",
    "emoji \U0001f4a5 \u05e2 \u202e reversed",
    "javascript:alert(1)",
    "=cmd|' /C calc'!A0",
    "'; drop table records; --",
    "a.b.c",
]


@dataclass
class Serving:
    """A running `sonde view`."""

    folder: Path
    process: subprocess.Popen
    address: str
    log: Path
    clients: list[httpx.Client] = field(default_factory=list)

    @property
    def base(self) -> str:
        return self.address.partition("?")[0]

    @property
    def port(self) -> int:
        return urlsplit(self.address).port

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def token(self) -> str | None:
        return self.address.partition("?token=")[2] or None

    def stranger(self, **options) -> httpx.Client:
        """A client that brings nothing."""
        client = httpx.Client(
            base_url=self.base, timeout=300, trust_env=False, verify=False, **options
        )
        self.clients.append(client)
        return client

    def client(self, **options) -> httpx.Client:
        """A client that has come with the printed address."""
        client = self.stranger(follow_redirects=True, **options)
        if self.token:
            assert client.get(self.address).status_code == 200
        return client

    def get(self, view: str, client: httpx.Client | None = None, **question) -> httpx.Response:
        return (client or self.known).get(f"api/{view}", params=question)

    @property
    def known(self) -> httpx.Client:
        """One client that all may use."""
        if not hasattr(self, "_known"):
            self._known = self.client()
        return self._known

    def run_id(self, name: str) -> str:
        """The id of the run with that name, as a page learns it."""
        rows = self.get("runs").json()["spec"]["runs"]
        return next(row["id"] for row in rows if row["name"] == name)

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def raw(self, data: bytes, *, size: int = 1 << 16) -> bytes:
        """What the server says to these bytes before it closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(data)
            said = b""
            with contextlib.suppress(TimeoutError):
                connection.settimeout(20)
                while len(said) < size:
                    part = connection.recv(size)
                    if not part:
                        break
                    said += part
                    if b"\r\n\r\n" in said and _is_whole(said):
                        break
            return said

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self, how: int = signal.SIGTERM) -> int:
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def serve(folder: Path, log: Path, *options: str) -> Serving:
    """Start `sonde view` and wait until it says where it is."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "sonde", "view", str(folder), "--no-browser", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            text=True,
        )
    for line in process.stdout:
        found = re.search(r"http://\S+", line)
        if found:
            return Serving(folder, process, found[0], log)
    process.wait(START_S)
    raise AssertionError(f"`sonde view` ended with {process.returncode}: {log.read_text()}")


def _is_whole(said: bytes) -> bool:
    head, _, body = said.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return found is None or len(body) >= int(found[1])


# -- runs -----------------------------------------------------------------------------------------


def write(writer: Writer, step: int, sites: int) -> None:
    """A step: what site `i` holds follows from `i` and the step."""
    made = [sketch(values(i, step)).columns() for i in range(sites)]
    writer.sketches(SketchBatch(step, "train", np.arange(sites, dtype=np.int32), concatenate(made)))
    writer.numbers(NumberBatch(step, "train", ["loss"], [None], np.array([1 / (1 + step)])))


def values(site: int, step: int) -> np.ndarray:
    return np.linspace(-1, 1, 11) * (1 + site) * 2.0**step


def make_run(path: Path, names: list[str], steps: int = 4, **options) -> Path:
    """A run of a model with children of these names, one after the other."""
    with Writer(path, compact=False, **options) as writer:
        writer.sites([SiteInfo(i, Site(n, "output"), "f32", (11,), n) for i, n in enumerate(names)])
        writer.graph(chain(names))
        for step in range(steps):
            write(writer, step, len(names))
    return path


def chain(names: list[str]) -> GraphPart:
    port = (CallPort("0", "float32", (11,)),)
    nodes = [GraphNode(".", "", 0, "module", "", port, port, 1)]
    nodes += [GraphNode(n, n, 0, "module", ".", port, port, 1) for n in names]
    edges = [GraphEdge(a, b, 1) for a, b in pairwise(names)]
    modules = [GraphModule("", "Model"), *(GraphModule(n, n, f"of={n}") for n in names)]
    return GraphPart(0, modules, nodes, edges, 1)
