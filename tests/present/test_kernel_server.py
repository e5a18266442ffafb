"""The server in a kernel: pages of other origins may ask with its token, and no other way."""

import re
from pathlib import Path

import httpx
import pytest

pytest.importorskip("anywidget")

import sonde
from sonde.notebook.kernel_server import KernelServer, server_for

ORIGIN = "http://localhost:8888"
DOCUMENT = Path(__file__).parents[2] / "docs" / "notebooks.md"


@pytest.fixture(scope="module")
def kernel(folder):
    made = server_for(str(folder / "good"))
    yield made
    made.close()


def test_a_page_of_another_origin_asks_with_the_token(kernel):
    with httpx.Client(trust_env=False) as client:
        address = f"{kernel.base}api/runs"
        before = client.options(
            address,
            headers={
                "origin": ORIGIN,
                "access-control-request-method": "GET",
                "access-control-request-headers": "authorization",
            },
        )
        assert before.status_code == 204
        assert before.headers["access-control-allow-origin"] == ORIGIN
        bearer = {"origin": ORIGIN, "authorization": f"Bearer {kernel.token}"}
        found = client.get(address, headers=bearer | {"sec-fetch-site": "cross-site"})
        assert found.status_code == 200
        assert found.headers["access-control-allow-origin"] == ORIGIN


@pytest.mark.parametrize("more", [{}, {"authorization": "Bearer wrong"}])
def test_without_the_token_nothing_is_told_to_it(kernel, more):
    with httpx.Client(trust_env=False) as client:
        found = client.get(f"{kernel.base}api/runs", headers={"origin": ORIGIN, **more})
        assert found.status_code == 403
        assert "access-control-allow-origin" not in found.headers
        assert "good" not in found.text


def test_another_name_is_refused_even_with_the_token(kernel):
    bearer = {"host": "evil.example", "authorization": f"Bearer {kernel.token}"}
    with httpx.Client(trust_env=False) as client:
        for method in ("GET", "OPTIONS"):
            assert (
                client.request(method, f"{kernel.base}api/runs", headers=bearer).status_code == 403
            )


def test_a_server_for_pages_of_its_own_has_no_guests(server):
    with server.stranger() as client:
        bearer = {"origin": ORIGIN, "authorization": f"Bearer {server.token}"}
        assert client.get(f"http://{server.host}/api/runs", headers=bearer).status_code == 403


def test_code_in_the_document_about_notebooks_runs_in_order(tmp_path, monkeypatch):
    import served

    monkeypatch.chdir(tmp_path)
    served.make_run(tmp_path / "runs" / "first", ["a"])
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 4
    names = {}
    exec("\n".join(blocks), names)
    assert names["run"].steps == list(range(20))
    for thing in (names["run"], names["run"].sketch("0", kind="output")):
        assert "<table" in thing._repr_html_()
    assert "<svg" in names["run"].histogram("0", kind="output")._repr_html_()


def test_a_watch_is_shown_while_it_records_and_not_when_it_is_off(tmp_path):
    import torch

    with sonde.watch(torch.nn.Linear(2, 2), dir=tmp_path, name="<b>") as watch:
        shown = watch._repr_html_()
        assert "&lt;b&gt;" in shown
        assert "<b>" not in shown
    assert sonde.Watch.inert()._repr_html_() is None


def test_an_open_server_answers_this_machine_without_a_token_and_no_other_origin(folder):
    server = KernelServer(str(folder / "good"), is_open=True)
    try:
        with httpx.Client(trust_env=False) as client:
            own = f"http://localhost:{server.port}"
            assert client.get(f"{own}/api/runs").status_code == 200
            foreign = {"origin": ORIGIN, "sec-fetch-site": "cross-site"}
            assert client.get(f"{own}/api/runs", headers=foreign).status_code == 403
            stranger = {"host": "evil.example"}
            assert client.get(f"{own}/api/runs", headers=stranger).status_code in {400, 403, 421}
    finally:
        server.close()
