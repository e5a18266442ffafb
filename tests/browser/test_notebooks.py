"""The widget in a real JupyterLab and a real marimo: it renders, hears pushes while a cell trains,
and gets answers without waiting for the cell."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
from browser_pages import watch_page
from playwright.sync_api import expect

SLOW_MS = 90_000
WIDGET = "[data-sonde-widget]"

SHOW = """\
import os, time, torch, sonde
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
watch = sonde.watch(model, optimizer, every=1, dir="runs", name="{name}", flush_s=0.5)
def step():
    loss = model(torch.randn(32, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    watch.log(loss=loss)
for _ in range(3):
    step()
watch.flush()
widget = sonde.show(watch, height=700)
"""

TRAIN = """\
began = time.time()
while not os.path.exists("stop-{name}") and time.time() - began < 240:
    step()
    time.sleep(0.02)
watch.close()
"""


@dataclass
class Host:
    """A notebook server in a process of its own."""

    folder: Path
    base: str
    process: subprocess.Popen

    def stop(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def started(command, folder, base, **more):
    """The host, once it answers."""
    with open(folder / "host.log", "w") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=os.environ | more
        )
    host = Host(folder, base, process)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            opener.open(base, timeout=5).close()
            return host
        time.sleep(0.2)
    host.stop()
    raise AssertionError((folder / "host.log").read_text()[-3000:])


def written(folder, name, cells):
    """A notebook file with these cells."""
    made = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell{i}",
                "metadata": {},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
            for i, source in enumerate(cells)
        ],
    }
    path = folder / f"{name}.ipynb"
    path.write_text(json.dumps(made))
    return path


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab, one for all tests."""
    pytest.importorskip("jupyterlab")
    folder = tmp_path_factory.mktemp("lab")
    port = free_port()
    more = {
        name: str(folder / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    options = [
        f"--port={port}",
        "--no-browser",
        "--allow-root",
        "--IdentityProvider.token=",
        "--ServerApp.password=",
        "--ServerApp.disable_check_xsrf=True",
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        f"--ServerApp.root_dir={folder}",
    ]
    command = [sys.executable, "-m", "jupyterlab", *options]
    made = started(command, folder, f"http://127.0.0.1:{port}/", **more)
    yield made
    made.stop()


@pytest.fixture
def notebook_page(browser):
    """A tall page of a notebook: JupyterLab draws the cells in view alone. Errors of ours fail the
    test; those of the host are its own."""
    frame = browser.new_context(viewport={"width": 1300, "height": 3600})
    frame.set_default_timeout(SLOW_MS)
    page = frame.new_page()
    page.seen = watch_page(page)
    yield page
    frame.close()
    ours = [e for e in page.seen.errors if "page error" in e and "sonde" in e.lower()]
    assert not ours, ours


def last_step(page):
    """The last step that the widget tells."""
    text = page.locator(f"{WIDGET} .cards").inner_text()
    return int(re.search(r"step ([\d\u202f]+)", text)[1].replace("\u202f", ""))


def eventually(page, is_so):
    """Wait until something holds. The widget may lie in the shadow tree of its host."""
    until = time.monotonic() + SLOW_MS / 1000
    while not is_so():
        assert time.monotonic() < until, "it did not come to pass"
        page.wait_for_timeout(100)


def grows(page):
    """Wait until the widget tells of a later step than now."""
    before = last_step(page)
    eventually(page, lambda: last_step(page) > before)


def opens_a_cell(page):
    """A click on a cell of the heatmap gives its histogram."""
    plot = page.locator(f"{WIDGET} .heat-plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    plot.click(position={"x": box["width"] * 0.5, "y": 12})
    drawer = page.locator(f"{WIDGET} [data-drawer]")
    expect(drawer.locator("[data-drawer-step]")).to_be_visible()
    expect(drawer).to_contain_text("fp8 e4m3")
    return drawer


def run_all(page):
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def open_lab(lab, page, name, cells):
    written(lab.folder, name, cells)
    page.goto(f"{lab.base}lab/workspaces/{name}/tree/{name}.ipynb?reset")
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    page.get_by_text(re.compile(r"\| Idle$")).wait_for()
    run_all(page)


def is_training(page):
    prompts = page.locator(".jp-Notebook .jp-InputArea-prompt").all_inner_texts()
    return any("*" in prompt for prompt in prompts)


def test_the_widget_lives_while_its_kernel_trains_in_jupyterlab(lab, notebook_page):
    page, name = notebook_page, "live"
    open_lab(lab, page, name, [SHOW.format(name=name) + "widget", TRAIN.format(name=name)])
    page.locator(f"{WIDGET} [data-heat]").wait_for()
    assert is_training(page)
    grows(page)  # pushes, and what they make it ask
    opens_a_cell(page)  # a question while the cell runs
    over = page.locator(f"{WIDGET} .timeline .over")
    over.click(position={"x": 0, "y": 20})
    page.mouse.move(5, 5)
    expect(page.locator(f"{WIDGET} [data-cursor-step]")).to_have_text("0")
    expect(page.locator(f"{WIDGET} [data-drawer-step]")).to_have_text("step 0")
    assert is_training(page), "the cell ended before the answers came"
    # Keys are the widget's: they neither add nor delete cells.
    cells = page.locator(".jp-Notebook .jp-Cell").count()
    page.locator(f"{WIDGET} [data-heat]").focus()
    for key in ("d", "d", "a", "b"):
        page.keyboard.press(key)
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    (lab.folder / f"stop-{name}").touch()
    expect(page.locator(f'{WIDGET} [data-status="finished"]')).to_be_visible()
    page.keyboard.press("Control+s")


def test_without_a_way_to_the_server_the_kernel_pushes_what_is_on_screen(lab, notebook_page):
    page, name = notebook_page, "pushed"
    refused = []

    def refuse(route):
        refused.append(route.request.url)
        route.abort()

    page.route(re.compile(r"http://127\.0\.0\.1:\d+/api/(heat|run|lines|section|movers)\b"), refuse)
    open_lab(lab, page, name, [SHOW.format(name=name) + "widget", TRAIN.format(name=name)])
    heat = page.locator(f"{WIDGET} [data-heat]")
    heat.wait_for()
    before = int(heat.get_attribute("data-columns"))
    eventually(page, lambda: int(heat.get_attribute("data-columns")) > before)
    assert is_training(page)
    # What was not on screen waits for the cell, and says so; then it comes.
    plot = page.locator(f"{WIDGET} .heat-plot")
    box = plot.bounding_box()
    plot.click(position={"x": box["width"] * 0.5, "y": 12})
    expect(page.locator(f"{WIDGET} [data-waiting]")).to_be_visible()
    assert refused
    (lab.folder / f"stop-{name}").touch()
    expect(page.locator(f"{WIDGET} [data-drawer-step]")).to_be_visible()
    expect(page.locator(f"{WIDGET} [data-waiting]")).to_have_count(0)


def test_single_views_and_the_picture_in_the_file(lab, notebook_page):
    import nbformat
    from nbconvert import HTMLExporter

    page, name, other = notebook_page, "views", "views-again"
    train = "for _ in range(20):\n    step()\nwatch.close()\nrun = sonde.open(watch.path)\n"
    cells = [
        SHOW.format(name=other) + train + SHOW.format(name=name) + train,
        "heat = run.view.heatmap('param_grad', height=420)\nheat",
        "run.view.kymograph('0', kind='output', height=500)",
        "run.view.lines('loss')",
        "run.view.graph(height=400)",
        "run.view.table('param', height=400)",
        f"run.view.compare('runs/{other}', kind='param', height=600)",
        "run",
        "run.sketch('0', kind='output', step=0)",
    ]
    open_lab(lab, page, name, cells)
    solo = page.locator(f'{WIDGET} [data-solo="heatmap"]')
    solo.locator("[data-heat]").wait_for()
    plot = solo.locator(".heat-plot")
    plot.scroll_into_view_if_needed()
    row = float(solo.locator("[data-heat]").get_attribute("data-row-height"))
    plot.click(position={"x": 4, "y": 1.5 * row})
    expect(solo.locator("[data-drawer-step]")).to_have_text("step 0")
    for view, what in (
        ("kymograph", "[data-kymo]"),
        ("lines", ".timeline .uplot"),
        ("graph", "[data-node]"),
        ("table", ".layer-rows tbody tr"),
        ("compare", "[data-compared='difference'] [data-heat]"),
    ):
        found = page.locator(f'{WIDGET} [data-solo="{view}"] {what}').first
        found.scroll_into_view_if_needed()
        expect(found).to_be_visible()
    expect(page.get_by_text("Run views")).to_be_visible()
    expect(page.get_by_text("values by power of two")).to_be_visible()
    page.locator(".jp-Notebook .jp-CodeCell").first.click()
    page.keyboard.press("Control+s")
    path = lab.folder / f"{name}.ipynb"
    until = time.monotonic() + 60
    while time.monotonic() < until:
        saved = nbformat.read(path, as_version=4)
        if saved.cells[1].outputs and saved.cells[-1].outputs:
            break
        time.sleep(0.2)
    assert not saved.cells[0].outputs, "a widget that is not the value of its cell shows nothing"
    data = saved.cells[1].outputs[0]["data"]
    assert data["image/png"].startswith("iVBOR")
    assert path.stat().st_size < 2_000_000
    shown, _ = HTMLExporter().from_notebook_node(saved)
    assert shown.count("data:image/png;base64") >= 4


MARIMO = """\
import marimo
app = marimo.App()

@app.cell
def _():
{show}
    return os, time, step, watch, widget

@app.cell
def _(widget):
    widget
    return

@app.cell
def _(os, time, step, watch, widget):
    widget
{train}
    return
"""


@pytest.fixture(scope="module")
def marimo(tmp_path_factory):
    pytest.importorskip("marimo")
    folder = tmp_path_factory.mktemp("marimo")
    indent = lambda text: "".join(f"    {line}\n" for line in text.splitlines())  # noqa: E731
    text = MARIMO.format(
        show=indent(SHOW.format(name="live")), train=indent(TRAIN.format(name="live"))
    )
    (folder / "live.py").write_text(text)
    port = free_port()
    command = [
        *(sys.executable, "-m", "marimo", "-q", "run", "live.py", "--headless"),
        *("--port", str(port), "--host", "127.0.0.1", "--no-token"),
    ]
    made = started(command, folder, f"http://127.0.0.1:{port}/")
    yield made
    made.stop()


def test_the_widget_lives_while_its_kernel_trains_in_marimo(marimo, notebook_page):
    page = notebook_page
    page.goto(marimo.base)
    page.locator(f"{WIDGET} [data-heat]").first.wait_for()
    grows(page)
    opens_a_cell(page)
    assert not (marimo.folder / "stop-live").exists()
    (marimo.folder / "stop-live").touch()
    expect(page.locator(f'{WIDGET} [data-status="finished"]')).to_be_visible()
