"""What is served where: the page, its files, an empty folder, a prefix, and the end of the demo."""

import contextlib
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import served

from sonde._version import VERSION


def test_the_page_and_its_files_are_served_once(server):
    page = server.known.get("")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script" in page.text
    for name in re.findall(r'(?:src|href)="\./?([^"#]+)"', page.text):
        found = server.known.get(name)
        assert found.status_code == 200, name
        tag = found.headers["etag"]
        again = server.known.get(name, headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
    assert not re.search(r'(?:src|href)="(?:/|https?:)', page.text), "all addresses are relative"


def test_what_is_large_is_sent_compressed_to_whoever_accepts_it(server):
    run = server.get("runs").json()["spec"]["runs"][0]["id"]
    for path in ("app.js", f"api/run?run={run}"):
        plain = server.known.get(path, headers={"accept-encoding": "identity"})
        packed = server.known.get(path, headers={"accept-encoding": "br;q=0.5, gzip"})
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "accept-encoding"
        assert int(packed.headers["content-length"]) < 0.6 * int(plain.headers["content-length"])
        assert packed.content == plain.content
        refused = server.known.get(path, headers={"accept-encoding": "gzip;q=0"})
        assert "content-encoding" not in refused.headers
    font = server.known.get("inter.woff2", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in font.headers


@pytest.mark.parametrize("path", ["", "app.js", "api/runs", "api/server", "api/events", "nothing"])
def test_head_is_get_without_the_body(server, path):
    head = server.known.head(path)
    assert head.content == b""
    if path == "api/events":
        assert head.status_code == 200
        return
    get = server.known.get(path)
    for name in ("content-type", "content-length", "etag", "cache-control"):
        assert head.headers.get(name) == get.headers.get(name)
    assert head.status_code == get.status_code


def test_an_empty_folder_shows_how_to_record(start, tmp_path):
    for folder in (tmp_path, tmp_path / "not" / "there"):
        found = start(folder)
        runs = found.get("runs").json()["spec"]
        assert runs["runs"] == []
        assert runs["folder"] == str(folder)
        compile(runs["how_to_record"], "how", "exec")
        assert "sonde.watch" in runs["how_to_record"]
        assert found.get("server").json()["spec"]["page"]
        assert found.known.get("").status_code == 200


def test_runs_that_come_later_are_found(start, tmp_path):
    found = start(tmp_path / "later")
    assert found.get("runs").json()["spec"]["runs"] == []
    served.make_run(tmp_path / "later" / "one", ["a"])
    assert [r["name"] for r in found.get("runs").json()["spec"]["runs"]] == ["one"]


def test_a_run_can_be_served_by_itself(start, folder):
    found = start(folder / "good")
    rows = found.get("runs").json()["spec"]["runs"]
    assert [row["name"] for row in rows] == ["good"]
    assert found.get("run", run=rows[0]["id"]).status_code == 200


def test_answers_name_the_version_and_the_state_of_the_run(server):
    found = server.get("run", run=server.run_id("good")).json()
    assert found["version"] == VERSION
    assert found["view"] == "run"
    assert found["run"]["status"] == "finished"
    assert found["run"]["last_step"] == 3


def test_below_a_prefix_everything_is_as_at_the_top(start, folder):
    found = start(folder, "--prefix", "/lab/sonde/")
    assert "/lab/sonde/?token=" in found.address
    client = found.stranger()
    assert client.get(f"http://{found.host}/lab/sonde/api/runs").status_code == 401
    moved = client.get(f"http://{found.host}/lab/sonde?token={found.token}")
    assert moved.status_code == 307
    assert moved.headers["location"] == f"./sonde/?token={found.token}"
    assert client.get(found.address).status_code == 303
    for path in ("", "app.js", "api/runs", "api/server"):
        assert client.get(f"http://{found.host}/lab/sonde/{path}").status_code == 200, path
    for path in ("/lab/", "/lab", "/lab/sondes/api/runs", "/lab/sonde/lab/sonde/"):
        assert client.get(f"http://{found.host}{path}").status_code in {401, 404}, path
    outside = found.stranger(headers={"authorization": f"Bearer {found.token}"})
    assert outside.get(f"http://{found.host}/api/runs").status_code == 200, "taken off by a proxy"


def test_behind_a_proxy_that_takes_the_prefix_off_the_cookie_is_for_the_prefix(server):
    """The proxy is played by a thread: it forwards `/lab/x` as `/x`."""
    with proxy(server.port, "/lab") as port:
        client = server.stranger(follow_redirects=True)
        found = client.get(f"http://127.0.0.1:{port}/lab/?token={server.token}")
        assert found.status_code == 200
        (cookie,) = client.cookies.jar
        assert cookie.path in {"/lab", "/lab/"}
        assert client.get(f"http://127.0.0.1:{port}/lab/api/runs").status_code == 200


@contextlib.contextmanager
def proxy(port, prefix):
    """Forwards each request, with the prefix taken off and the name of the server put in."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)

        def carry(one):
            with one, socket.create_connection(("127.0.0.1", port)) as other:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += one.recv(65536)
                head = head.replace(b" " + prefix.encode() + b"/", b" /", 1)
                head = re.sub(rb"(?i)\r\nhost: [^\r]*", b"\r\nHost: 127.0.0.1:%d" % port, head)
                head = re.sub(rb"(?i)\r\nconnection: [^\r]*", b"\r\nConnection: close", head)
                other.sendall(head)
                while part := other.recv(65536):
                    one.sendall(part)

        def accept():
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    carry(listening.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            ended.set()
            thread.join(20)


DEMO = ("demo", "--steps", "2", "--every", "1", "--name", "shown")  # no terminal: tests/demo


def test_the_demo_ends_by_serving_its_run_at_a_terminal(tmp_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", *DEMO],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DISPLAY": "", "WAYLAND_DISPLAY": ""},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        said = read_until(ours, re.compile(r"(http://127\.0\.0\.1:\d+/\?token=\S+)"), 120)
        found = served.Serving(tmp_path, process, said, tmp_path / "log")
        rows = found.get("runs").json()["spec"]["runs"]
        assert [row["name"] for row in rows] == ["shown"]
        level = found.get("level", run=rows[0]["id"]).json()["spec"]
        assert level["has_flow"]
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal, pattern, timeout_s):
    """The first group of the pattern in what a terminal shows."""
    said, deadline = "", time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                said += os.read(terminal, 65536).decode("utf-8", "replace")
            except OSError:
                break
        found = pattern.search(said)
        if found and "Ctrl-C" in said:
            return found[1]
    raise AssertionError(said[-3000:])
