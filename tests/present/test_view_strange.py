"""Whatever a stranger has put into a run, or into a question, is text and stays text."""

import sys
from dataclasses import fields
from typing import get_type_hints

import pytest
from served import NAMES

from sonde.present.worker import OpenRuns, answer, refusal
from sonde.views.envelope import unpack
from sonde.views.routes import ROUTES
from sonde.views.specs import Failure

SECRET = "SECRET-7f3a"
WAYS = [
    "../secret.txt",
    "../../../../etc/passwd",
    "..\\..\\secret.txt",
    "%2e%2e%2fsecret.txt",
    "%252e%252e%252fsecret.txt",
    "....//secret.txt",
    "..;/secret.txt",
    "/etc/passwd",
    "file:///etc/passwd",
    "\\\\?\\C:\\x",
    "..\u2215secret.txt",
    "good/../../secret.txt",
    "good\x00",
    "goodness",
    "good*",
    "~",
    ".",
    "..",
]
REQUIRED = {"site": "a/output/0", "q": "a", "node": "."}


def texts():
    """Every parameter of every view that takes text, found from the questions themselves."""
    return [
        (route.name, name)
        for route in ROUTES.values()
        for name, hint in get_type_hints(route.question).items()
        if hint in {str, str | None, tuple[str, ...]}
    ]


def question(view, run, more=None):
    wanted = {f.name for f in fields(ROUTES[view].question)}
    base = {"run": run, "other": run, **REQUIRED} if ROUTES[view].of_run else {}
    return {k: v for k, v in {**base, **(more or {})}.items() if k in wanted}


@pytest.mark.parametrize(("view", "name"), texts())
def test_no_way_in_any_parameter_leads_out(server, view, name):
    run = server.run_id("good")
    for way in WAYS:
        asked = question(view, run, {name: way})
        if name == "module":
            asked.pop("node", None)  # of the two only one is looked at
        found = server.get(view, **asked)
        assert found.status_code in {200, 400, 404, 413, 422}, way
        assert SECRET not in found.text
        assert "root:" not in found.text
        assert "Traceback" not in found.text
        if name == "run" and view != "state":
            assert found.status_code in {400, 404}, way
        if name in {"site", "node", "module", "under"} and way != ".":
            assert found.status_code in {400, 404}, way
        if found.status_code >= 400:
            error = found.json()["error"]
            assert error["message"].endswith((".", ")"))
            assert "/tmp" not in error["message"], "no path of the machine is told"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "/%2e%2e%2f%2e%2e%2fetc/passwd",
        "/static/../app.js",
        "/./app.js/../../secret.txt",
        "//etc/passwd",
        "/app.js%00.html",
        "/app.js/",
        "/api/../secret.txt",
        "/..\\secret.txt",
        "/file:///etc/passwd",
        "/guard.py",
        "/../guard.py",
        "/%c0%ae%c0%ae/secret.txt",
    ],
)
def test_no_address_leads_out(server, path):
    said = server.raw(
        f"GET {path} HTTP/1.1\r\nHost: {server.host}\r\n"
        f"Authorization: Bearer {server.token}\r\n\r\n".encode()
    )
    assert int(said.split(b" ", 2)[1]) in {400, 404}
    assert SECRET.encode() not in said
    assert b"root:" not in said


WATCHED = {"on": False}
OPENED = []


def _hear(event, arguments):
    if WATCHED["on"] and event in {"open", "os.listdir", "os.scandir"}:
        OPENED.append(str(arguments[0]))


sys.addaudithook(_hear)  # cannot be removed; it hears nothing unless it is switched on


def status_of(desk, view, pairs):
    try:
        answer(desk, {"view": view, "run": pairs["run"], "question": list(pairs.items())})
    except Exception as error:
        return refusal(error)[0]
    return 200


def test_nothing_outside_of_the_folder_is_opened(folder):
    desk = OpenRuns(str(folder))
    run = next(r.id for r in desk.shelf.runs() if r.name == "good")
    asked = [(view, name) for view, name in texts() if ROUTES[view].of_run]
    for view, _ in asked:
        assert status_of(desk, view, question(view, run)) == 200, "libraries are loaded now"
    OPENED.clear()
    WATCHED["on"] = True
    try:
        statuses = {
            status_of(desk, view, question(view, run, {name: way}))
            for view, name in asked
            for way in WAYS[:6]
        }
    finally:
        WATCHED["on"] = False
    assert statuses <= {200, 400, 404}
    assert OPENED, "the hook hears"
    assert [path for path in OPENED if not path.startswith(str(folder))] == []


def test_names_are_cut_and_escaped_but_never_changed(server):
    run = server.run_id("strange")
    tree = server.get("tree", run=run)
    assert tree.headers["content-type"] == "application/json"
    assert tree.content.isascii()
    nodes = tree.json()["spec"]["nodes"]
    paths = [n["path"] for n in nodes]
    for name in NAMES:
        shown = name if len(name) <= 1000 else name[:999] + "…"
        assert shown in paths, name[:50]
    for node in nodes:
        assert len(node["label"]) <= 200
        assert len(node["module"]) <= 200
        assert "<" not in node["module"]
        assert ".." not in node["module"]


def test_every_module_can_be_opened_and_drawn_by_its_id(server):
    run = server.run_id("strange")
    hits = server.get("search", run=run, q="", limit=500).json()["spec"]["hits"]
    assert len(hits) >= len(NAMES)
    for hit in hits:
        panel = server.get("panel", run=run, module=hit["module"])
        assert panel.status_code == 200
        if hit["node"] is not None:
            assert server.get("level", run=run, node=hit["node"]).status_code == 200
        for section in panel.json()["spec"]["sections"]:
            for site in section["sites"]:
                found = server.get("kymograph", run=run, site=site["id"])
                assert unpack(found.content)["spec"]["total"].tolist() == [11.0] * 4
                assert server.get("section", run=run, site=site["id"]).status_code == 200


@pytest.mark.parametrize("view", [v for v, r in ROUTES.items() if r.of_run])
def test_every_view_answers_about_strange_names(server, view):
    run = server.run_id("strange")
    found = server.get(view, **question(view, run, {"site": "plain/output/0"}))
    assert found.status_code == 200
    assert found.headers["content-type"] in {"application/json", "application/vnd.sonde"}
    assert b"<script>" not in found.content or found.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("view", "more"),
    [
        ("heat", {"stat": "rms; drop table records"}),
        ("heat", {"stat": '"rms" from stats) --'}),
        ("heat", {"stat": "p99999"}),
        ("heat", {"aggregate": "sum(v)) --"}),
        ("heat", {"kind": "' or 1=1 --"}),
        ("heat", {"columns": "10**9"}),
        ("heat", {"rows": "-1"}),
        ("movers", {"stat": "rms) from read_text('/etc/passwd') --"}),
        ("movers", {"limit": "1; --"}),
        ("section", {"format": "__import__('os')"}),
        ("section", {"step": "NaN"}),
        ("lines", {"columns": "1e400"}),
        ("kymograph", {"low": "inf", "high": "nan"}),
        ("kymograph", {"range": "fixed", "low": "1e-323", "high": "2e-323", "cells": "512"}),
        ("search", {"q": "re:(a+$"}),
        ("search", {"q": "x" * 300}),
        ("tree", {"fold": "maybe"}),
        ("level", {"unknown": "1"}),
    ],
)
def test_code_in_a_question_is_refused_with_a_sentence(server, view, more):
    found = server.get(view, **{**question(view, server.run_id("good")), **more})
    assert found.status_code in {400, 404}
    assert set(found.json()) == {f.name for f in fields(Failure)}
    assert len(found.json()["error"]["message"]) <= 1000
    assert "Traceback" not in found.text


def test_parameters_without_end_are_refused(server):
    run = server.run_id("good")
    for query in (
        "run=" + "x" * 20_000,
        "run=x&" + "&".join("name=a" for _ in range(100)),
        "&".join(f"run={i}" for i in range(100)),
        f"run={run}&" + "&".join(f"x{i}=1" for i in range(1000)),
    ):
        found = server.known.get(f"api/lines?{query}")
        assert found.status_code == 400
        assert len(found.content) < 2000
