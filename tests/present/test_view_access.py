"""Who may ask: nobody without the token, under another name, from another site, or to change."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile

import httpx
import psutil
import pytest

from sonde.present.doorway import RedirectFile
from sonde.present.guard import HEADERS, Rules
from sonde.present.server import make_app
from sonde.views.routes import ROUTES


def addresses():
    """Every address that the application has, from the application itself."""
    rules = Rules.of(token="t", port=1, host="127.0.0.1")
    return [route.path for route in make_app(".", rules)._app.routes]


ADDRESSES = addresses()
ODD = ["/nothing", "/api", "/api/", "/api/nothing", "/docs", "/openapi.json", "//", "/%2e/"]


def test_every_view_has_an_address():
    assert {f"/api/{name}" for name in ROUTES} | {"/api/events", "/", "/app.js"} <= set(ADDRESSES)


@pytest.mark.parametrize("path", [*ADDRESSES, *ODD])
def test_nothing_is_told_without_the_token(server, path):
    run = server.run_id("good")
    with server.stranger() as client:
        for method in ("GET", "HEAD"):
            for query in ("", f"?run={run}", "?token=wrong", f"?x={server.token}"):
                found = client.request(method, f"http://{server.host}{path}{query}")
                assert found.status_code == 401, (method, query)
                assert "good" not in found.text
                check_headers(found)


@pytest.mark.parametrize("path", [*ADDRESSES, *ODD])
def test_the_token_in_the_address_opens_the_door_and_no_other(server, path):
    if path == "/":
        return
    with server.stranger() as client:
        found = client.get(f"http://{server.host}{path}?token={server.token}")
        assert found.status_code == 401
        assert "set-cookie" not in found.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"])
@pytest.mark.parametrize("has_token", [True, False])
def test_nothing_but_get_and_head_is_answered_and_nothing_changes(server, method, has_token):
    before = fingerprint(server.folder)
    client = server.client() if has_token else server.stranger()
    for path in (*ADDRESSES, *ODD):
        found = client.request(method, f"http://{server.host}{path}", content=b"x=1")
        assert found.status_code == 405, path
        assert found.headers["allow"] == "GET, HEAD"
        check_headers(found)
    assert fingerprint(server.folder) == before


def fingerprint(folder):
    """Names and contents of all files."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check_headers(found):
    for name, value in HEADERS.items():
        assert found.headers[name] == value
    assert "access-control-allow-origin" not in found.headers
    assert "unsafe" not in found.headers["content-security-policy"]
    assert "server" not in found.headers


def test_every_answer_says_what_a_browser_may_do_with_it(server):
    run = server.run_id("good")
    for path, status in {
        "": 200,
        "app.js": 200,
        "nothing": 404,
        "api/runs": 200,
        "api/runs?x=1": 400,
        f"api/run?run={run}": 200,
        f"api/lines?run={run}": 200,
        "api/run?run=nothing": 404,
    }.items():
        found = server.known.get(path)
        assert found.status_code == status, path
        check_headers(found)
        if status >= 400:
            assert set(found.json()) == {"version", "error"}
    with server.known.stream("GET", "api/events") as found:
        check_headers(found)


def test_the_printed_address_gives_a_cookie_and_hides_the_token(server):
    with server.stranger() as client:
        found = client.get(server.address)
        assert found.status_code == 303
        assert found.headers["location"] == "./"
        cookie = found.headers["set-cookie"]
        assert server.token not in cookie
        assert {"HttpOnly", "SameSite=Strict"} <= set(re.split("; ?", cookie))
        assert cookie.startswith(f"sonde-{server.port}=")
        assert client.get("./").status_code == 200
        assert client.get("api/runs").status_code == 200
        assert server.token not in client.get("./").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer {token}"}, 200),
        ({"authorization": "bearer {token}"}, 200),
        ({"authorization": "Bearer {token}x"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Basic {token}"}, 401),
        ({"authorization": "Bearer ÿ".encode("latin-1")}, 401),
        ({"cookie": "sonde-{port}={token}"}, 401),
        ({"cookie": "sonde-{port}="}, 401),
        ({"cookie": "sonde-{port}; ;;=;\x01"}, 401),
        ({"referer": "http://127.0.0.1:{port}/?token={token}"}, 401),
        ({"x-token": "{token}"}, 401),
    ],
)
def test_only_the_token_itself_or_the_cookie_counts(server, headers, status):
    filled = {
        k: v.format(token=server.token, port=server.port) if isinstance(v, str) else v
        for k, v in headers.items()
    }
    raw = b"".join(
        k.encode() + b": " + (v.encode("latin-1") if isinstance(v, str) else v) + b"\r\n"
        for k, v in filled.items()
    )
    said = server.raw(
        b"GET /api/runs HTTP/1.1\r\nHost: " + server.host.encode() + b"\r\n" + raw + b"\r\n"
    )
    found = int(said.split(b" ", 2)[1])
    assert found in ({200} if status == 200 else {401, 400})


@pytest.mark.parametrize("given", ["", "x", "{token}x", "{token}%00", "%ff%fe", "' or 1=1"])
def test_a_wrong_token_gets_no_cookie(server, given):
    with server.stranger() as client:
        found = client.get(f"{server.base}?token={given.format(token=server.token)}")
        assert found.status_code == 401
        assert "set-cookie" not in found.headers
        assert "text/html" in found.headers["content-type"]


def test_a_cookie_of_another_server_does_not_do(server, start, tmp_path):
    other = start(tmp_path)
    (value,) = dict(other.client().cookies).values()
    with server.stranger(cookies={f"sonde-{server.port}": value}) as client:
        assert client.get("api/runs").status_code == 401


def test_the_token_is_printed_once_and_never_logged(server):
    server.known.get(f"{server.base}?token={server.token}")
    server.known.get("nothing")
    assert server.token not in server.said()


HOSTS = [
    ("127.0.0.1:{port}", True),
    ("localhost:{port}", True),
    ("LocalHost:{port}", True),
    ("[::1]:{port}", True),
    ("127.0.0.1", False),
    ("localhost", False),
    ("127.0.0.1:1", False),
    ("evil.com", False),
    ("evil.com:{port}", False),
    ("127.0.0.1.evil.com:{port}", False),
    ("localhost.evil.com:{port}", False),
    ("evil.com@127.0.0.1:{port}", False),
    ("127.0.0.1:{port}.evil.com", False),
    ("127.0.0.1:{port}, evil.com", False),
    ("127.1:{port}", False),
    ("0.0.0.0:{port}", False),
    ("2130706433:{port}", False),
    ("", False),
]


@pytest.mark.parametrize(("host", "is_ours"), HOSTS)
def test_only_our_own_names_are_answered(server, host, is_ours):
    name = host.format(port=server.port)
    said = server.raw(
        f"GET /api/server HTTP/1.1\r\nHost: {name}\r\n"
        f"Authorization: Bearer {server.token}\r\n\r\n".encode()
    )
    status = int(said.split(b" ", 2)[1])
    assert status == (200 if is_ours else 403)


def test_two_hosts_or_none_are_refused(server):
    head = f"GET /api/server HTTP/1.1\r\nAuthorization: Bearer {server.token}\r\n"
    both = f"Host: {server.host}\r\nHost: evil.com\r\n\r\n"
    for rest in (both, "\r\n"):
        status = int(server.raw((head + rest).encode()).split(b" ", 2)[1])
        assert status in {400, 403}
    old = f"GET /api/server HTTP/1.0\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    assert int(server.raw(old.encode()).split(b" ", 2)[1]) in {400, 403}


def test_an_absolute_address_does_not_get_around_the_host(server):
    said = server.raw(
        f"GET http://127.0.0.1:{server.port}/api/server HTTP/1.1\r\nHost: evil.com\r\n"
        f"Authorization: Bearer {server.token}\r\n\r\n".encode()
    )
    assert int(said.split(b" ", 2)[1]) in {400, 403, 404}


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:{port}", 200),
        ("https://127.0.0.1:{port}", 200),
        ("http://localhost:{port}", 403),
        ("http://127.0.0.1", 403),
        ("http://127.0.0.1:{port}.evil.com", 403),
        ("http://127.0.0.1:{port}@evil.com", 403),
        ("http://evil.com/127.0.0.1:{port}", 403),
        ("http://evil127.0.0.1:{port}", 403),
        ("null", 403),
        ("", 403),
        ("file://", 403),
        ("http://evil.com", 403),
    ],
)
def test_only_our_own_page_may_ask(server, origin, status):
    name = origin.format(port=server.port)
    found = server.known.get("api/runs", headers={"origin": name})
    assert found.status_code == status
    check_headers(found)


@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, "api/runs", 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, "", 200),
        ({"sec-fetch-site": "cross-site"}, "api/runs", 403),
        ({"sec-fetch-site": "same-site"}, "api/runs", 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, "app.js", 403),
        (
            {
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "navigate",
                "sec-fetch-dest": "document",
            },
            "",
            200,
        ),
        (
            {
                "sec-fetch-site": "cross-site",
                "sec-fetch-mode": "navigate",
                "sec-fetch-dest": "iframe",
            },
            "",
            403,
        ),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, "api/runs", 403),
    ],
)
def test_other_sites_may_link_to_us_and_no_more(server, headers, path, status):
    assert server.known.get(path, headers=headers).status_code == status


def test_a_websocket_is_not_opened(server):
    said = server.raw(
        f"GET /api/events HTTP/1.1\r\nHost: {server.host}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert int(said.split(b" ", 2)[1]) == 401


def test_only_this_machine_can_connect(server):
    listening = [
        c.laddr.ip
        for c in psutil.Process(server.process.pid).net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]


def test_without_a_token_all_other_checks_remain(start, tmp_path):
    found = start(tmp_path, "--no-token")
    assert "token" not in found.address
    with found.stranger() as client:
        assert client.get("api/runs").status_code == 200
        assert client.get("api/runs", headers={"host": "evil.com"}).status_code == 403
        assert client.get("api/runs", headers={"origin": "null"}).status_code == 403
        assert client.post("api/runs").status_code == 405
        check_headers(client.get("api/runs"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_without_a_token_only_this_machine_is_served(tmp_path, host):
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "view", tmp_path, "--no-token", "--host", host],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "`--no-token` is for this machine only" in done.stderr
    assert "Traceback" not in done.stderr


def test_on_all_interfaces_there_is_a_token_and_a_warning(start, tmp_path):
    found = start(tmp_path, "--host", "0.0.0.0")
    assert found.token
    assert "not encrypted" in found.said()
    with found.stranger() as client:
        assert client.get("api/runs").status_code == 401
    assert found.get("runs").status_code == 200


def test_a_name_that_is_allowed_is_answered(start, tmp_path):
    found = start(tmp_path, "--allow-host", "lab.example:8443", "--allow-host", "other.example")
    head = {"authorization": f"Bearer {found.token}"}
    with found.stranger(headers=head) as client:
        for host, status in {
            "lab.example:8443": 200,
            "lab.example": 403,
            f"other.example:{found.port}": 200,
            "x.lab.example:8443": 403,
        }.items():
            assert client.get("api/runs", headers={"host": host}).status_code == status


def test_a_port_that_is_taken_makes_way_to_the_next(start, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = start(tmp_path, "--port", str(port))
        assert port < found.port <= port + 10


def test_mistakes_are_sentences(tmp_path):
    (tmp_path / "file").write_text("x")
    for options in (["file"], [".", "--port", "70000"], [".", "--prefix", "/../x"]):
        done = subprocess.run(
            [sys.executable, "-m", "sonde", "view", *options, "--no-browser"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=dict(os.environ),
        )
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert "`" in done.stderr


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "lengths",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "transfer-encoding: Chunked\r\ncontent-length: 0",
        "Content-Length: 4\r\nContent-Length: 5",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Content-Length: +4",
    ],
)
def test_a_request_whose_length_can_be_read_in_two_ways_is_refused(server, method, lengths):
    head = f"{method} /api/server HTTP/1.1\r\nHost: {server.host}\r\n"
    head += f"Authorization: Bearer {server.token}\r\n{lengths}\r\n\r\n"
    smuggled = f"GET /api/runs HTTP/1.1\r\nHost: {server.host}\r\n"
    smuggled += f"Authorization: Bearer {server.token}\r\n\r\n"
    said = server.raw(f"{head}0\r\n\r\n{smuggled}".encode())
    assert re.match(rb"HTTP/1.1 (400|501) ", said), said[:200]
    assert said.count(b"HTTP/1.1 ") == 1
    assert b"good" not in said


BROWSER = """
import json, os, sys
from urllib.parse import urlsplit
path = urlsplit(sys.argv[1]).path
found = {"arguments": sys.argv[1:], "path": path, "text": open(path).read()}
found["modes"] = [os.stat(p).st_mode & 0o777 for p in (path, os.path.dirname(path))]
open(os.environ["BROWSER_LOG"], "w").write(json.dumps(found))
"""


def test_the_token_is_not_among_the_arguments_of_the_browser(tmp_path):
    script, log = tmp_path / "browser.py", tmp_path / "browser.json"
    script.write_text(BROWSER)
    process = subprocess.Popen(
        [sys.executable, "-m", "sonde", "view", str(tmp_path), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **{k: v for k, v in os.environ.items() if k != "SSH_CONNECTION"},
            "PYTHONUNBUFFERED": "1",
            "DISPLAY": ":0",
            "BROWSER": f"{sys.executable} {script} %s",
            "BROWSER_LOG": str(log),
        },
    )
    try:
        address = next(
            found[0] for line in process.stdout if (found := re.search(r"http\S+", line))
        )
        # The browser has ended before the first request is answered.
        with httpx.Client(trust_env=False, timeout=60) as client:
            assert client.get(address.partition("?")[0]).status_code == 401
        found = json.loads(log.read_text())
        token = address.partition("?token=")[2]
        assert token
        assert token not in str(found["arguments"])
        assert address in found["text"]
        assert found["modes"] == [0o600, 0o700]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert not os.path.exists(os.path.dirname(found["path"]))


def test_the_file_that_leads_to_the_address_does_not_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with RedirectFile(kept_s=0.01) as doorway:
        doorway.open("http://127.0.0.1:1/?token=x&y=<z>")
        doorway._timer.join()
        assert list(tmp_path.iterdir()) == []
        where = doorway.open("http://127.0.0.1:1/?token=x&y=<z>")
        assert where.startswith("file:///")
    assert list(tmp_path.iterdir()) == []
