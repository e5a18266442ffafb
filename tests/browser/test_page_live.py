"""A training writes while the page is open; it dies; the server goes away and comes back."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from browser_pages import ids, ready
from made_runs import columns, graph_of, rnn, sites_of
from playwright.sync_api import expect

from sonde.record import SiteInfo, SketchBatch
from sonde.store import Writer

TRAINER = Path(__file__).with_name("browser_runs.py")
LATE_S = 4.0
SLOW_MS = 60_000  # for what happens by itself, on a machine that does much else

STEP = """() => Number(document.querySelector('#sonde').shadowRoot
  .querySelector('[data-cursor-step]')?.textContent.replace(/\\D/g, '') || -1)"""


@dataclass
class Training:
    """A process that trains until it is killed, and says when each step was done."""

    folder: Path
    clock: Path
    process: subprocess.Popen

    def done_s(self, step: int) -> float:
        lines = self.clock.read_text().splitlines()
        return float(lines[step].split()[1])


@pytest.fixture
def training(tmp_path):
    folder, clock = tmp_path / "runs", tmp_path / "clock"
    folder.mkdir()
    process = subprocess.Popen([sys.executable, str(TRAINER), str(folder), "now", str(clock)])
    started = time.monotonic()
    while not list(folder.glob("now/live/*/*.parquet")):
        assert process.poll() is None
        assert time.monotonic() - started < 120
        time.sleep(0.1)
    yield Training(folder, clock, process)
    process.kill()
    process.wait()


def is_of_panel(asked):
    """Whether a request, or its address, asks for what a panel shows."""
    return "/api/kymograph" in str(asked) or "/api/lines" in str(asked)


def step_beyond(page, step):
    """The first step that the page shows after this one, by itself."""
    page.wait_for_function(f"() => ({STEP})() > {step}", timeout=SLOW_MS)
    return page.evaluate(STEP)


def test_new_steps_appear_within_four_seconds_without_a_reload(training, start, open_page):
    server = start(training.folder, "--no-token")
    page = open_page(server, f"#/explore?run={ids(server)['now']}&pins=A:head")
    expect(page.locator('[data-status="live"]')).to_be_visible()
    page.evaluate("window.marker = 1")
    shown, delays = step_beyond(page, -1), []
    while not delays or (min(delays) > LATE_S and len(delays) < 10):
        # The step after the last one that was shown has waited longest.
        oldest = shown + 1
        shown = step_beyond(page, shown)
        delays.append(time.time() - training.done_s(oldest))
    assert min(delays) <= LATE_S, delays
    assert page.evaluate("window.marker") == 1, "the page was loaded again"

    # Panels follow, and only what came since is asked for.
    columns = page.locator('[data-pin="A"] .kymo-body').first
    asked = len(page.seen.requests)
    with page.expect_request(is_of_panel, timeout=SLOW_MS):
        before = int(columns.get_attribute("data-last"))
    page.wait_for_function(
        """before => +document.querySelector('#sonde').shadowRoot
          .querySelector('[data-pin="A"] .kymo-body').dataset.last > before""",
        arg=before,
        timeout=SLOW_MS,
    )
    later = [u for u in page.seen.requests[asked:] if is_of_panel(u)]
    assert all("after=" in u for u in later), later

    # Paused, the page stands still and counts.
    page.keyboard.press(" ")
    paused = page.evaluate(STEP)
    expect(page.locator('[data-status="paused"]')).to_contain_text("new", timeout=SLOW_MS)
    assert page.evaluate(STEP) == paused
    page.keyboard.press(" ")
    step_beyond(page, paused)


def test_the_page_outlives_its_server_and_tells_of_a_killed_training(training, start, open_page):
    server = start(training.folder, "--no-token")
    page = open_page(server, f"#/explore?run={ids(server)['now']}&pins=A:head")
    page.evaluate("window.marker = 1")

    # The server goes away: the page keeps what it shows, says so, and comes back by itself.
    page.seen.is_forgiving = True
    server.stop()
    expect(page.locator('[data-connection="lost"]')).to_be_visible(timeout=SLOW_MS)
    expect(page.locator('[data-node][data-label="stem"]')).to_be_visible()
    asked = len(page.seen.requests)
    page.wait_for_timeout(1000)
    assert len(page.seen.requests) - asked < 20, "it asks without a pause"
    again = start(training.folder, "--no-token", port=server.port)
    assert again.port == server.port
    expect(page.locator("[data-connection]")).to_have_count(0, timeout=SLOW_MS)
    page.seen.is_forgiving = False
    step_beyond(page, page.evaluate(STEP))
    assert page.evaluate("window.marker") == 1, "the page was loaded again"

    # The training is killed.
    os.kill(training.process.pid, signal.SIGKILL)
    expect(page.locator('[data-run-status="crashed"]')).to_be_visible(timeout=2 * SLOW_MS)
    expect(page.locator('[data-status="crashed"]')).to_be_visible()
    ready(page)
    page.get_by_role("button", name="Hide this message").click()
    expect(page.locator('[data-pin="A"] [data-kymo]').first).to_be_visible()
    page.goto(f"{server.base}#/runs")
    expect(page.locator('[data-run="now"]')).to_contain_text("crashed")


def test_colours_of_boxes_keep_their_meaning_while_a_run_is_followed(tmp_path, start, open_page):
    """Limits widen when a larger value comes and stay when it goes."""
    modules = rnn()
    sites = sites_of(modules, ("param",))
    ids_of_sites = np.arange(len(sites), dtype=np.int32)
    with Writer(tmp_path / "now", compact=False) as writer:

        def record(step, sizes):
            writer.sketches(SketchBatch(step, "train", ids_of_sites, columns(sizes)))
            writer.flush()

        writer.sites(
            [SiteInfo(i, s, "float32", (8, 8), modules[s.module]) for i, s in enumerate(sites)]
        )
        writer.graph(graph_of(modules))
        record(0, (0, 0, 4, 4))  # 1 in the cell, 2 in the head
        server = start(tmp_path, "--no-token")
        page = open_page(server, f"#/explore?run={ids(server)['now']}&kind=param")
        ends = page.locator("[data-tint-legend] .number")
        expect(ends).to_have_text(["1", "2"])
        head = page.locator('[data-node="head"]')
        record(1, (0, 0, 16, 16))
        expect(head).to_contain_text("16", timeout=SLOW_MS)
        expect(ends.nth(1)).not_to_have_text("2")
        wide = ends.all_inner_texts()
        assert float(wide[1]) > 15
        record(2, (0, 0, 4, 4))
        expect(head).not_to_contain_text("16", timeout=SLOW_MS)
        expect(ends).to_have_text(wide)


def test_without_a_stream_the_page_asks_now_and_then(training, start, open_page):
    server = start(training.folder, "--no-token")
    page = open_page(server, "#/runs")
    page.add_init_script("delete window.EventSource")
    page.goto(f"{server.base}?#/overview?run={ids(server)['now']}")
    ready(page)
    assert page.evaluate("typeof EventSource") == "undefined"
    step_beyond(page, page.evaluate(STEP))
