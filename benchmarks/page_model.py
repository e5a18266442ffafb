"""The page on a model of 80 layers, and beside an older page: `python benchmarks/page_model.py`.

A run of 80 layers (1,124 parameters with gradients, 60 steps) is shown by the page of these sources
and, with `--before REVISION`, by that of an older commit, in turns: the time until all of the
overview is drawn, and the time to switch the statistic. Then the time to draw a heatmap of 500 by
2,000 cells. Writes `results/page-model.csv`; compare the columns of one run, not of two.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from large_runs import RESULTS, Figure, Served, keep

ROOT = Path(__file__).parents[1]
READY = '#sonde[data-ready="1"]'
TURNS = 12
SWITCH = """
async (name) => {
  const root = document.querySelector("#sonde").shadowRoot;
  const select = [...root.querySelectorAll(".toolbar select")]
    .find((s) => [...s.options].some((o) => o.value === name));
  const host = document.querySelector("#sonde");
  const start = performance.now();
  select.value = name;
  select.dispatchEvent(new Event("change", { bubbles: true }));
  await new Promise((done) => setTimeout(done));
  while (host.dataset.ready !== "1") await new Promise((done) => setTimeout(done, 2));
  return performance.now() - start;
}
"""


def write_model(folder: Path, steps: int) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "browser"))
    from made_runs import llama, write

    write(folder / "llama80", llama(), steps=range(steps))


def older_sources(revision: str, folder: Path) -> Path:
    """The package as it was at a commit, with the extensions of today."""
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision, "src"], check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    for built in (ROOT / "src").rglob("*.so"):
        shutil.copy(built, folder / built.relative_to(ROOT))
    return folder / "src"


def visits(browser: Any, runs: Path, sources: Path) -> tuple[float, list[float]]:
    """One visit to the overview with a fresh server, and three switches of the statistic, in ms."""
    os.environ["PYTHONPATH"] = str(sources)
    served = Served(runs)
    try:
        served.get("run", run=served.run_id())  # the server has started
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        page.goto(f"{served.base}#/overview?run={served.run_id()}&kind=param")
        page.wait_for_selector(READY, state="attached", timeout=60_000)
        ready = page.evaluate("performance.now()")
        switched = [page.evaluate(SWITCH, name) for name in ("max_abs", "std", "rms")]
        page.close()
    finally:
        served.stop()
    return ready, switched


def measure(steps: int, before: str | None) -> Iterator[Figure]:
    found = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        runs = Path(folder) / "runs"
        write_model(runs, steps)
        pages = {"now": ROOT / "src"}
        if before:
            pages["before"] = older_sources(before, Path(folder))
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--no-proxy-server"]
        )
        ready: dict[str, list[float]] = {name: [] for name in pages}
        switched: dict[str, list[float]] = {name: [] for name in pages}
        for _ in range(TURNS):
            for name, sources in pages.items():
                one, some = visits(browser, runs, sources)
                ready[name].append(one)
                switched[name] += some
        browser.close()
    for name in pages:
        yield f"80 layers, {name}: overview drawn, median", statistics.median(ready[name]), "ms"
        median = statistics.median(switched[name])
        yield f"80 layers, {name}: statistic switched, median", median, "ms"
    node = shutil.which("node")
    if node:
        told = subprocess.run(
            [node, "bench.mjs"], cwd=ROOT / "web", check=True, capture_output=True, text=True
        )
        drawn = json.loads(told.stdout)
        yield "heatmap of 500 × 2,000 cells: drawn, median", drawn["median_ms"], "ms"
        yield "heatmap of 500 × 2,000 cells: drawn, longest", drawn["longest_ms"], "ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--before", metavar="REVISION", help="a commit to compare with, in turns")
    parser.add_argument("--out", type=Path, default=RESULTS / "page-model.csv")
    asked = parser.parse_args()
    keep(measure(asked.steps, asked.before), asked.out)


if __name__ == "__main__":
    main()
