"""What others add is seen on the page: a statistic by itself, a destination once it is built."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser_pages import ids, ready
from playwright.sync_api import expect

import sonde

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "extending"
LINES = {
    "src/sonde/views/routes.py": (
        '        Route("movers"',
        '        Route("largest", q.RunQuestion, largest.Largest, "largest:answer"),\n',
    ),
    "web/src/core/destinations.ts": (
        '  { page: "layers"',
        '  { page: "largest", label: "Largest", key: "t" },\n',
    ),
    "web/src/views/Page.tsx": ("  layers: LayersPage", "  largest: LargestPage,\n"),
}
"""Where a destination is named, before which line, and with which."""

IMPORTS = {
    "src/sonde/views/routes.py": (
        "from sonde.views import questions as q",
        "from sonde.views import largest\n",
    ),
    "web/src/views/Page.tsx": (
        'import { LayersPage } from "./LayersPage";',
        'import { LargestPage } from "./LargestPage";\n',
    ),
}


def test_a_statistic_of_a_file_is_on_the_page_by_itself(runs, start, open_page):
    server = start(runs, "--load", str(EXAMPLES / "statistic.py"))
    run = ids(server)["transformer"]
    page = open_page(server, f"#/layers?run={run}&stat=crest&kind=output")
    expect(page.get_by_label("Statistic").locator("option:checked")).to_have_text("crest factor")
    expect(page.locator(".legend-title").first).to_have_text("crest factor of output")
    cell = page.locator("canvas").first
    expect(cell).to_be_visible()
    page = open_page(server, f"#/overview?run={run}&kind=output&stat=crest")
    expect(page.locator(".mover").first).to_be_visible()
    page.locator(".mover").first.click()
    figure = page.locator("[data-drawer] dl.numbers").get_by_text("crest factor")
    expect(figure).to_be_visible()


def _insert(path: Path, anchor: str, line: str) -> None:
    text = path.read_text()
    assert text.count(anchor) == 1, (path, anchor)
    path.write_text(text.replace(anchor, line + anchor))


@pytest.fixture
def tree(tmp_path):
    """A copy of the sources with the destination of the example in it, built."""
    node = shutil.which("node")
    if node is None or not (ROOT / "web" / "node_modules").exists():
        pytest.skip("building the page takes Node; `make web` installs what it needs")
    skip = shutil.ignore_patterns("__pycache__", "node_modules", "golden")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=skip)
    shutil.copytree(ROOT / "web", tmp_path / "web", ignore=skip)
    (tmp_path / "web" / "node_modules").symlink_to(ROOT / "web" / "node_modules")
    for table in (LINES, IMPORTS):
        for name, (anchor, line) in table.items():
            _insert(tmp_path / name, anchor, line)
    shutil.copy(EXAMPLES / "destination" / "largest.py", tmp_path / "src/sonde/views")
    shutil.copy(EXAMPLES / "destination" / "LargestPage.tsx", tmp_path / "web/src/views")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    types = subprocess.run(
        [sys.executable, "-m", "sonde.views.typescript"],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    (tmp_path / "web/src/api.gen.ts").write_text(types.stdout)
    for command in (["node_modules/.bin/tsc", "--noEmit"], [node, "build.mjs"]):
        done = subprocess.run(
            command, cwd=tmp_path / "web", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return tmp_path


@pytest.mark.slow
def test_a_destination_is_two_files_and_three_lines(tree, runs, start, open_page, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tree / "src"))
    server = start(runs)
    page = open_page(server, f"#/overview?run={ids(server)['transformer']}")
    page.get_by_role("button", name="Largest", exact=True).click()
    ready(page)
    table = page.locator("[data-largest]")
    expect(table.locator("tr")).to_have_count(20)
    run = sonde.open(runs / "transformer")
    last = run.stats("*", stat="max_abs", steps=run.steps[-1])
    largest = last.sort_values("max_abs", ascending=False)["name"].iloc[0]
    expect(table.locator("td").first).to_have_text(largest)
    page.keyboard.press("g")
    page.keyboard.press("l")
    expect(page.locator(".layers")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(table).to_be_visible()


def test_the_document_has_every_line():
    text = (ROOT / "docs" / "extending.md").read_text()
    for name, (_, line) in LINES.items():
        assert name in text
        assert line.strip() in text, line
