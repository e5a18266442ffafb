"""What breaks does not spread: damaged runs, dead workers, questions that are too much, crowds."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import duckdb
import httpx
import psutil
import pytest
import served
import uvicorn

from sonde.present import worker
from sonde.present.guard import Rules
from sonde.present.server import make_app
from sonde.present.timeouts import patient_protocol
from sonde.present.worker import OpenRuns, answer, refusal
from sonde.present.workers import Worker


def test_a_run_file_that_is_cut_in_half_is_told_and_the_others_are_shown(server):
    rows = {row["name"]: row for row in server.get("runs").json()["spec"]["runs"]}
    assert rows["cut"]["problem"]
    assert rows["good"]["problem"] is None
    found = server.get("run", run=rows["cut"]["id"])
    assert found.status_code == 422
    assert found.json()["error"]["code"] == "damaged"
    assert "`cut` cannot be read" in found.json()["error"]["message"]
    assert server.get("run", run=rows["good"]["id"]).status_code == 200


def test_segments_that_are_cut_in_half_are_notices(server):
    run = server.run_id("halved")
    header = server.get("run", run=run)
    assert header.status_code == 200
    notices = header.json()["spec"]["notices"]
    assert {n["code"] for n in notices} >= {"damaged"}
    for view in ("tree", "level", "lines", "movers", "spark"):
        assert server.get(view, run=run).status_code == 200, view
    assert server.get("heat", run=run).status_code == 404


def test_a_killed_worker_is_replaced_and_nobody_notices(server):
    run = server.run_id("good")
    assert server.get("run", run=run).status_code == 200
    workers = server.workers()
    assert workers
    for process in workers:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(workers, timeout=120)
    assert server.get("run", run=run).status_code == 200
    assert server.get("runs").status_code == 200
    assert not {w.pid for w in server.workers()} & {w.pid for w in workers}


def test_workers_are_killed_while_they_are_asked(server):
    run = server.run_id("good")
    ended = threading.Event()

    def kill():
        while not ended.is_set():
            for process in server.workers():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGKILL)
            ended.wait(0.4)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        statuses = [server.get("run", run=run).status_code for _ in range(6)]
    finally:
        ended.set()
        killer.join()
    assert set(statuses) <= {200, 422, 503}
    assert server.get("run", run=run).status_code == 200


@contextlib.contextmanager
def serving(folder, *, patience_s=10.0):
    """A server in a thread, so that its limits can be short."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(512)
        port = listening.getsockname()[1]
        rules = Rules.of(token=None, port=port, host="127.0.0.1")
        app = make_app(str(folder), rules, timeout_s=300)
        config = uvicorn.Config(
            app, log_level="error", ws="none", http=patient_protocol(patience_s)
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
                yield client, port
        finally:
            server.should_exit = True
            thread.join(120)


def test_a_question_that_takes_too_long_is_given_up(folder):
    async def ask():
        one, asked = Worker(str(folder), 300), {"view": "runs", "question": []}
        assert (await one.ask(asked)).status == 200
        stuck = one._process
        psutil.Process(stuck.pid).suspend()
        one.timeout_s = 1.0
        given_up = await one.ask(asked)
        one.timeout_s = 300.0
        assert (await one.ask(asked)).status == 200, "by another process"
        await one.close()
        return given_up, stuck.returncode

    given_up, code = asyncio.run(ask())
    assert (given_up.status, given_up.head["code"]) == (504, "timeout")
    assert "takes longer than 1 s" in given_up.head["message"]
    assert code == -signal.SIGKILL


def test_connections_that_say_nothing_are_ended(folder):
    with serving(folder, patience_s=0.5) as (client, port), contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(20)
        ]
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        slow.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert client.get("/api/server").status_code == 200
        for one in (*silent, slow):
            one.settimeout(120)
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(100) == b"", "the server has hung up"
        time.sleep(0.7)
        assert client.get("/api/server").status_code == 200, "answers are no silence"


def test_more_visitors_than_fit_are_sent_away_and_the_others_served(server):
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
    try:
        with ThreadPoolExecutor(40) as pool:
            run = server.run_id("good")
            head = {"authorization": f"Bearer {server.token}"}

            def ask(i):
                url = f"{server.base}api/lines?run={run}&columns={8 + i}"
                return httpx.get(url, headers=head, timeout=60, verify=False).status_code

            statuses = list(pool.map(ask, range(80)))
    finally:
        for one in held:
            one.close()
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) > 10
    assert server.get("run", run=run).status_code == 200


def test_too_many_questions_for_one_worker_are_refused_at_once(folder):
    async def crowd():
        one = Worker(str(folder), 300)
        asked = [one.ask({"view": "stamps", "runs": []}) for _ in range(100)]
        replies = await asyncio.gather(*asked)
        await one.close()
        return [reply.status for reply in replies]

    statuses = asyncio.run(crowd())
    assert statuses.count(200) == 64
    assert statuses.count(503) == 36


def test_quick_questions_go_before_those_that_read_much(folder):
    """What is asked at once, in the order in which it is answered."""

    async def crowd():
        one, answered = Worker(str(folder), 300), []

        async def answer_slowly(request):
            await asyncio.sleep(0.01)
            answered.append(request["view"])

        one._ask = answer_slowly
        views = ("movers", "heat", "tint", "lines", "section", "kymograph", "panel")
        await asyncio.gather(*(one.ask({"view": view}) for view in views))
        return answered

    assert asyncio.run(crowd()) == [
        "movers",
        *("lines", "section", "panel"),
        *("heat", "tint", "kymograph"),
    ]


def test_a_question_of_a_gigabyte_is_refused_before_it_is_read(server):
    def send(first: bytes, more: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as one:
            one.sendall(first)
            said = b""
            try:
                for _ in range(1024):  # a gigabyte, if somebody took it
                    one.sendall(more)
                    one.settimeout(0.01)
                    with contextlib.suppress(TimeoutError):
                        said = one.recv(4096)
                        break
                    one.settimeout(20)
            except OSError:
                pass
            return said

    before = psutil.Process(server.process.pid).memory_info().rss
    block = b"x" * (1 << 20)
    address = send(b"GET /api/lines?run=", block)
    assert address == b"" or address.startswith(b"HTTP/1.1 400")
    head = f"POST /api/runs HTTP/1.1\r\nHost: {server.host}\r\nContent-Length: {1 << 30}\r\n\r\n"
    body = send(head.encode(), block)
    assert body == b"" or body.startswith(b"HTTP/1.1 405")
    header = send(f"GET / HTTP/1.1\r\nHost: {server.host}\r\nX: ".encode(), block)
    assert header == b"" or header.startswith(b"HTTP/1.1 400")
    assert psutil.Process(server.process.pid).memory_info().rss - before < 64 << 20
    assert server.get("runs").status_code == 200


def test_workers_cannot_take_the_memory_of_the_machine(server):
    resource = pytest.importorskip("resource")
    server.get("run", run=server.run_id("good"))
    workers = server.workers()
    assert workers
    for process in workers:
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_DATA)
        assert 0 < soft == hard <= 3 << 30
        assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)


def test_the_widest_questions_are_bounded(server):
    run = server.run_id("good")
    for view, more in {
        "heat": {"columns": 8192, "rows": 8192},
        "kymograph": {"site": "a/output/0", "columns": 8192, "cells": 512},
        "lines": {"columns": 8192},
        "search": {"limit": 500},
        "tint": {"columns": 512},
    }.items():
        assert server.get(view, run=run, **more).status_code == 200
        wider = {k: 10**9 if isinstance(v, int) else v for k, v in more.items()}
        assert server.get(view, run=run, **wider).status_code == 400


@pytest.fixture
def desk(folder):
    found = OpenRuns(str(folder))
    yield found
    for run in list(found._open):
        found._close(run)


def test_a_question_that_needs_too_much_memory_is_refused(desk, monkeypatch):
    run = next(r.id for r in desk.shelf.runs() if r.name == "good")
    subject = desk.subject(run)
    with pytest.raises(Exception, match=r"(?i)memory") as caught:
        subject.ask(
            "select count(distinct (a.range * 100000 + b.range)::varchar || repeat('x', 200)) "
            "from range(100000) a, range(1000) b"
        )
    assert refusal(caught.value)[:2] == (413, "too_much")
    monkeypatch.setattr(worker, "MAX_ANSWER_BYTES", 100)
    with pytest.raises(MemoryError) as caught:
        answer(desk, {"view": "run", "run": run, "question": [("run", run)]})
    assert refusal(caught.value)[:2] == (413, "too_much")


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_text('/etc/passwd')",
        "select * from read_csv_auto('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/*')",
        "select * from read_parquet('http://127.0.0.1:1/x.parquet')",
        "copy (select 1) to '/tmp/sonde-was-here'",
        "attach '/tmp/sonde-was-here.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "pragma database_list",
        "create table x as select 1",
        "select getenv('HOME')",
        "select 1; select 2",
    ],
)
def test_a_run_in_a_worker_reads_its_own_files_and_nothing_else(desk, query):
    run = next(r.id for r in desk.shelf.runs() if r.name == "good")
    subject = desk.subject(run)
    with pytest.raises(Exception, match=r"(?i)query failed|single `select`") as caught:
        subject.ask(query)
    status, _, message = refusal(caught.value)
    assert status in {400, 500}
    assert "root:" not in message
    assert not os.path.exists("/tmp/sonde-was-here")
    assert subject.ask("select count(*) as n from records")["n"][0].as_py() == 12


def test_errors_that_nobody_foresaw_are_not_told_to_visitors():
    for error in (ValueError("/home/me/secret"), KeyError("x"), duckdb.Error("at /home/me")):
        status, code, message = refusal(error)
        assert (status, code) == (500, "failed")
        assert "/home" not in message


def test_a_thousand_runs_are_listed_and_four_are_open(tmp_path):
    model = served.make_run(tmp_path / "model", ["a"], steps=1)
    folder = tmp_path / "runs"
    for i in range(1020):
        (folder / f"run{i}").mkdir(parents=True)
        shutil.copy(model / "run.json", folder / f"run{i}")
    for i in range(7):
        shutil.rmtree(folder / f"run{i}")
        shutil.copytree(model, folder / f"run{i}")
    desk = OpenRuns(str(folder))
    table = desk.shelf.table()
    assert (len(table.runs), table.left_out) == (1000, 20)
    for row in table.runs:
        if row.name in {f"run{i}" for i in range(7)}:
            answer(desk, {"view": "heat", "run": row.id, "question": [("run", row.id)]})
    assert len(desk._open) == 4
    for run in list(desk._open):
        desk._close(run)


HOSTILE = {
    "dense": '{"run_id": "a", "config": [' + "[]," * ((14 << 20) // 3) + "[]]}",
    "long": '{"run_id": "' + "x" * (8 << 20) + '"}',
    "deep": "[" * 100_000,
    "odd numbers": '{"run_id": "a", "created_ns": 1e999, "config": {"watch": {"model": NaN}}}',
    "huge numbers": '{"run_id": 1, "created_ns": ' + "9" * 5000 + "}",
    "twice": '{"run_id": "a", "run_id": "b", "created_ns": -9223372036854775809}',
    "a list": "[1, 2, 3]",
    "nothing": "",
    "no text": "\x00\xff\xfe",
    "markup": '{"run_id": "<script>", "config": {"watch": {"model": "<img onerror=x>"}}}',
}


def test_run_files_of_strangers_are_told_or_shown_and_do_no_harm(start, tmp_path):
    folder = tmp_path / "runs"
    served.make_run(folder / "good", ["a"])
    for name, text in HOSTILE.items():
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(text, encoding="latin-1")
    found = start(folder)
    rows = {row["name"]: row for row in found.get("runs").json()["spec"]["runs"]}
    assert set(rows) == {"good", *HOSTILE}
    for name, row in rows.items():
        header = found.get("run", run=row["id"])
        assert header.status_code in {200, 422}, name
        if header.status_code == 422:
            assert len(header.json()["error"]["message"]) <= 1000
    assert found.get("run", run=rows["good"]["id"]).status_code == 200
    assert "Traceback" not in found.said()


def test_a_run_that_is_deleted_while_it_is_looked_at_is_told(start, tmp_path):
    folder = tmp_path / "runs"
    served.make_run(folder / "one", ["a"])
    served.make_run(folder / "two", ["a"])
    found = start(folder)
    one, two = found.run_id("one"), found.run_id("two")
    assert found.get("heat", run=one).status_code == 200
    shutil.rmtree(folder / "one")
    gone = found.get("heat", run=one)
    assert gone.status_code == 404
    assert gone.json()["error"]["code"] == "no_such_run"
    assert found.get("heat", run=two).status_code == 200
    assert [r["name"] for r in found.get("runs").json()["spec"]["runs"]] == ["two"]


def test_copies_of_a_run_are_told_apart(start, tmp_path):
    folder = tmp_path / "runs"
    served.make_run(folder / "one", ["a"], steps=2)
    shutil.copytree(folder / "one", folder / "copy")
    found = start(folder)
    ids = {r["name"]: r["id"] for r in found.get("runs").json()["spec"]["runs"]}
    assert len(set(ids.values())) == 2
    for run in ids.values():
        assert found.get("run", run=run).json()["spec"]["recorded_steps"] == 2


def test_a_folder_that_may_not_be_written_is_read_and_left_alone(start, tmp_path):
    folder = tmp_path / "runs"
    served.make_run(folder / "one", ["a"])
    before = sorted(str(p) for p in folder.rglob("*"))
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        found = start(folder)
        assert found.get("heat", run=found.run_id("one")).status_code == 200
        assert sorted(str(p) for p in folder.rglob("*")) == before
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_server(start, tmp_path, how):
    served.make_run(tmp_path / "runs" / "one", ["a"])
    found = start(tmp_path / "runs")
    assert found.get("run", run=found.run_id("one")).status_code == 200
    workers = found.workers()
    assert workers
    code = found.stop(how)
    _, alive = psutil.wait_procs(workers, timeout=120)
    assert not alive
    assert "Traceback" not in found.said()
    assert how == signal.SIGKILL or code in {0, 130, -how, 128 + how}


def test_a_worker_that_has_grown_is_replaced_and_its_questions_answered(folder):
    async def pids(**limit):
        one, found = Worker(str(folder), 300, **limit), []
        for _ in range(3):
            reply = await one.ask({"view": "runs", "question": []})
            assert reply.status == 200
            found.append(one._process.pid)
        await one.close()
        return found

    assert len(set(asyncio.run(pids(soft_limit=1)))) == 3
    assert len(set(asyncio.run(pids()))) == 1


def test_a_worker_that_ran_out_of_memory_is_replaced(folder, tmp_path):
    requests, answers = tmp_path / "requests", tmp_path / "answers"
    asked = json.dumps({"view": "runs", "question": []}).encode()
    requests.write_bytes(len(asked).to_bytes(4, "little") + asked)

    def run_out(*_):
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch, requests.open("rb") as i, answers.open("wb") as o:
        patch.setattr(worker, "answer", run_out)
        worker.main(str(folder), i, o)
    head = json.loads(answers.read_bytes()[4:])
    assert (head["status"], head["is_full"]) == (413, True)


def test_runs_that_were_deleted_leave_nothing_in_the_memory_of_the_list(tmp_path):
    for i in range(3):
        served.make_run(tmp_path / f"run{i}", ["a"], steps=1)
    shelf = OpenRuns(str(tmp_path)).shelf
    assert len(shelf.table().runs) == 3
    shutil.rmtree(tmp_path / "run1")
    assert len(shelf.table().runs) == 2
    assert len(shelf._abouts) == len(shelf._readers) == 2


def test_hundreds_of_slow_connections_do_not_lock_others_out(start, tmp_path):
    served.make_run(tmp_path / "runs" / "one", ["a"])
    found = start(tmp_path / "runs")
    with contextlib.ExitStack() as stack:
        for i in range(400):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", found.port)))
            if i % 2:
                one.sendall(b"GET / HTTP/1.1\r\nHost: ")
            if i % 20 == 19:
                assert found.stranger().get("api/runs").status_code == 401, i
        head = {"authorization": f"Bearer {found.token}"}
        url = f"{found.base}api/runs"
        for _ in range(5):
            assert httpx.get(url, headers=head, timeout=60, verify=False).status_code == 200


def test_connections_that_idle_make_room_and_one_that_is_answered_stays(start, tmp_path):
    served.make_run(tmp_path / "runs" / "one", ["a"])
    found = start(tmp_path / "runs")
    with contextlib.ExitStack() as stack:
        known = found.client()
        run = found.run_id("one")
        events = stack.enter_context(known.stream("GET", "api/events", params={"run": run}))
        lines = events.iter_lines()
        assert next(lines).startswith("retry:")
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", found.port)))
        assert any(line.startswith("data:") for line in lines)
        with served.Writer(tmp_path / "runs" / "two", compact=False):
            assert any(line.startswith("data:") for line in lines)
