"""A run is followed while it is written: pages are told that it advanced, and ask for the rest."""

import json
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
import served

from sonde.record import Site, SiteInfo
from sonde.store import Writer
from sonde.views.envelope import unpack


class Stream:
    """Server-sent events, read in a thread."""

    def __init__(self, server, *runs):
        self.events = []
        self.lines = []
        self._came = threading.Condition()
        self._client = server.client()
        query = "&".join(f"run={run}" for run in runs)
        self._thread = threading.Thread(target=self._read, args=(f"api/events?{query}",))
        self._thread.start()

    def _read(self, path):
        try:
            with self._client.stream("GET", path) as response:
                self._socket = response.extensions["network_stream"].get_extra_info("socket")
                assert response.headers["content-type"].startswith("text/event-stream")
                for line in response.iter_lines():
                    with self._came:
                        self.lines.append(line)
                        if line.startswith("data: "):
                            self.events.append((time.monotonic(), json.loads(line[6:])))
                        self._came.notify_all()
        except (httpx.HTTPError, RuntimeError):
            pass

    def wait_for(self, what, timeout_s=120.0):
        """The first event of which `what` is true; when it came."""
        with self._came:
            assert self._came.wait_for(
                lambda: any(what(event) for _, event in self.events), timeout_s
            ), self.events
            return next((at, event) for at, event in self.events if what(event))

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(120)
        self._client.close()


@pytest.fixture
def live(tmp_path, start):
    """A run that is being written, another that is not, and their server."""
    folder = tmp_path / "runs"
    served.make_run(folder / "old", ["a"])
    with Writer(folder / "live", compact=False, flush_s=0.5, heartbeat_s=0.5) as writer:
        writer.sites([SiteInfo(0, Site("a", "output"), "float32", (11,), "A")])
        served.write(writer, 0, 1)
        assert writer.flush(20)
        yield writer, start(folder)


def test_new_steps_are_told_and_only_of_the_runs_asked_for(live):
    writer, server = live
    run = server.run_id("live")
    stream = Stream(server, run)
    try:
        _, first = stream.wait_for(lambda e: e["runs"])
        assert [r["id"] for r in first["runs"]] == [run]
        assert first["runs"][0]["last_step"] == 0
        assert first["runs"][0]["status"] == "live"
        assert any(line.startswith("retry: ") for line in stream.lines)
        for step in (1, 2):
            served.write(writer, step, 1)
            stream.wait_for(lambda e, step=step: e["runs"] and e["runs"][0]["last_step"] == step)
        told = len(stream.events)
        assert told <= 5, "one event per advance"
    finally:
        stream.close()


def test_deltas_bring_what_is_new_and_no_more(live):
    writer, server = live
    run = server.run_id("live")
    asked = {
        "heat": {"kind": "output"},
        "kymograph": {"site": "a/output/0", "range": "fixed", "low": -9, "high": 9},
        "lines": {"name": "loss"},
    }

    def axis(spec):
        return spec.get("columns", spec)

    cursors = {}
    for view, more in asked.items():
        spec = unpack(server.get(view, run=run, **more).content)["spec"]
        cursors[view] = axis(spec)["cursor"]
        assert axis(spec)["first"].tolist() == [0.0]
    nothing = unpack(server.get("heat", run=run, **asked["heat"], after=cursors["heat"]).content)
    assert axis(nothing["spec"])["first"].size == 0
    served.write(writer, 5, 1)
    served.write(writer, 6, 1)
    assert writer.flush(20)
    for view, more in asked.items():
        found = server.get(view, run=run, **more, after=cursors[view])
        spec = unpack(found.content)["spec"]
        assert axis(spec)["first"].tolist() == [5.0, 6.0], view
        assert axis(spec)["from_step"] == 5
        assert unpack(found.content)["run"]["last_step"] == 6


def test_polling_tells_the_same(live):
    writer, server = live
    run = server.run_id("live")
    first = server.get("state", run=run).json()["spec"]
    assert first["changed"]
    again = server.get("state", run=run, since=first["token"]).json()["spec"]
    assert (again["changed"], again["runs"], again["token"]) == (False, [], first["token"])
    served.write(writer, 9, 1)
    assert writer.flush(20)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = server.get("state", run=run, since=first["token"]).json()["spec"]
        if found["changed"]:
            break
        time.sleep(0.2)
    assert found["runs"][0]["last_step"] == 9
    assert found["list_version"] == first["list_version"]
    unknown = server.get("state", run="nothing").json()["spec"]
    assert unknown["runs"] == []


def test_a_new_run_and_an_end_change_the_list(live, tmp_path):
    writer, server = live
    run = server.run_id("live")
    stream = Stream(server, run)
    try:
        _, first = stream.wait_for(lambda e: e["runs"])
        served.make_run(tmp_path / "runs" / "newer", ["a"])
        _, second = stream.wait_for(lambda e: e["list_version"] != first["list_version"])
        assert {r["name"] for r in server.get("runs").json()["spec"]["runs"]} == {
            "old",
            "live",
            "newer",
        }
        writer.close("finished")
        stream.wait_for(
            lambda e: (
                e["runs"]
                and e["runs"][0]["status"] == "finished"
                and e["list_version"] != second["list_version"]
            )
        )
    finally:
        stream.close()


def test_a_trainer_that_is_killed_is_told_as_crashed(tmp_path, start):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[2]); import served\n"
        "from sonde.store import Writer\n"
        "from sonde.record import Site, SiteInfo\n"
        "w = Writer(sys.argv[1], compact=False, flush_s=0.2, heartbeat_s=0.3)\n"
        "w.sites([SiteInfo(0, Site('a', 'output'), 'f32', (11,), 'A')])\n"
        "served.write(w, 0, 1); w.flush(20); print('ready', flush=True); time.sleep(600)\n"
    )
    here = served.__file__.rpartition("/")[0]
    path = tmp_path / "runs" / "killed"
    trainer = subprocess.Popen(
        [sys.executable, "-c", code, str(path), here], stdout=subprocess.PIPE, text=True
    )
    try:
        assert trainer.stdout.readline() == "ready\n"
        server = start(tmp_path / "runs")
        run = server.run_id("killed")
        stream = Stream(server, run)
        try:
            stream.wait_for(lambda e: e["runs"] and e["runs"][0]["status"] == "live")
            trainer.kill()
            trainer.wait()
            stream.wait_for(lambda e: e["runs"] and e["runs"][0]["status"] == "crashed", 30)
            assert server.get("heat", run=run).status_code == 200
        finally:
            stream.close()
    finally:
        trainer.kill()
        trainer.stdout.close()


def test_a_listener_that_leaves_is_forgotten(server):
    for _ in range(5):
        with server.known.stream("GET", "api/events") as response:
            next(response.iter_lines())
    assert server.get("runs").status_code == 200
