"""How the page feels on a large run, in a real Chromium: `python benchmarks/page.py --keep DIR`.

Takes the runs that `views.py --keep DIR` has made. For each page: from the beginning of the visit
until all that was asked for is drawn, of a server that was just started and again. Then the times
between frames while the pointer moves over a heatmap, and while a graph is dragged and zoomed.
Writes `results/page.csv`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from large_runs import RESULTS, Figure, Served, keep

READY = '#sonde[data-ready="1"]'
SIZE = {"width": 1600, "height": 900}

# When the page first says that it is ready, on its own clock.
NOTE_READY = """
new MutationObserver((_, observer) => {
  if (document.querySelector('#sonde[data-ready="1"]')) {
    requestAnimationFrame(() => { window.readyMs ??= performance.now(); });
    observer.disconnect();
  }
}).observe(document, { subtree: true, attributes: true, childList: true });
"""

# When the numbers of the timeline had come.
TIMELINE = """
() => Math.max(...performance.getEntriesByType("resource")
  .filter((e) => e.name.includes("api/lines")).map((e) => e.responseEnd))
"""

COUNT_FRAMES = """
() => {
  window.frames_ = [];
  let last = performance.now();
  const next = (now) => {
    window.frames_.push(now - last);
    last = now;
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}
"""


def measure_visits(browser: Any, path: Path, name: str, pages: dict[str, str]) -> Iterator[Figure]:
    """`pages` are the parts of the address after the run."""
    for title, place in pages.items():
        served = Served(path)
        try:
            time.sleep(3)  # a person takes as long to open the address
            run = served.run_id()
            frame = browser.new_context(viewport=SIZE)
            for visit in ("just started", "again", "again"):
                page = frame.new_page()
                page.add_init_script(NOTE_READY)
                page.goto(f"{served.base}#/{place.format(run=run)}")
                page.wait_for_selector(READY, state="attached", timeout=60_000)
                page.wait_for_function("window.readyMs !== undefined")
                yield (
                    f"{name}, {title}: timeline there, {visit}",
                    page.evaluate(TIMELINE) / 1e3,
                    "s",
                )
                yield f"{name}, {title}: all drawn, {visit}", page.evaluate("readyMs") / 1e3, "s"
                page.close()
            yield f"{name}, {title}: memory of the server", served.memory() / 2**20, "MiB"
            frame.close()
        finally:
            served.stop()


def frames(page: Page, act: Callable[[], None]) -> tuple[float, float, float]:
    """Median, 95 % and longest time between frames during an action, in ms."""
    page.evaluate(COUNT_FRAMES)
    act()
    found = sorted(page.evaluate("frames_"))[:]
    return statistics.median(found), found[int(0.95 * (len(found) - 1))], found[-1]


def measure_frames(browser: Any, path: Path) -> Iterator[Figure]:
    served = Served(path)
    try:
        run = served.run_id()
        for title, place, selector, act in (
            ("pointer over a heatmap", f"#/layers?run={run}&kind=output", ".heat-plot", hover),
            ("a graph is dragged", f"#/explore?run={run}&at=model", "[data-graph]", drag),
            ("a graph is zoomed", f"#/explore?run={run}&at=model", "[data-graph]", zoom),
        ):
            page = browser.new_page(viewport=SIZE)
            page.goto(f"{served.base}{place}")
            page.wait_for_selector(READY, state="attached", timeout=60_000)
            box = page.locator(selector).first.bounding_box()
            assert box is not None
            before = page.screenshot()
            found = frames(page, lambda: act(page, box))  # noqa: B023
            assert page.screenshot() != before, f"{title}: nothing moved"
            for which, ms in zip(("median", "95 %", "longest"), found, strict=True):
                yield f"{title}: frame, {which}", ms, "ms"
            page.close()
    finally:
        served.stop()


def hover(page: Page, box: dict[str, float]) -> None:
    for i in range(120):
        page.mouse.move(box["x"] + box["width"] * (i + 1) / 122, box["y"] + 60 + i)


def drag(page: Page, box: dict[str, float]) -> None:
    x, y = box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.85
    page.mouse.move(x, y)
    page.mouse.down()
    for i in range(120):
        page.mouse.move(x - 3 * (i % 70), y - (i % 70))
    page.mouse.up()


def zoom(page: Page, box: dict[str, float]) -> None:
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for i in range(60):
        page.mouse.wheel(0, 20 if i % 20 < 11 else -20)


def measure(folder: Path) -> Iterator[Figure]:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--no-proxy-server"]
        )
        large = {
            "overview": "overview?run={run}",
            "layers": "layers?run={run}&kind=output",
            "graph": "explore?run={run}",
        }
        yield from measure_visits(browser, folder / "transformer", "transformer", large)
        yield from measure_frames(browser, folder / "transformer")
        many = {"overview": "overview?run={run}", "graph": "explore?run={run}"}
        yield from measure_visits(browser, folder / "experts", "many modules", many)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, required=True, help="where `views.py` made its runs")
    parser.add_argument("--out", type=Path, default=RESULTS / "page.csv")
    asked = parser.parse_args()
    keep(measure(asked.keep), asked.out)


if __name__ == "__main__":
    main()
