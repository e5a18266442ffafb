"""The documentation site: built without a warning, and readable without a network."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from document import ROOT

pytest.importorskip("mkdocs", reason="the site needs mkdocs")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. A warning fails the build: mkdocs.yml is strict."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return folder


def test_nothing_on_the_site_is_loaded_from_elsewhere(site):
    loading = re.compile(
        r'<(?:script|img|source|iframe|link)[^>]*(?:src|href|srcset)="(https?:[^"]+)"'
    )
    found = {
        address
        for page in site.rglob("*.html")
        for address in loading.findall(page.read_text(encoding="utf-8"))
    }
    assert found == set()
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"(?:url|@import)\s*\(?[\"']?https?:", styles)


def test_every_public_name_has_a_heading_in_the_reference(site):
    text = "".join(p.read_text(encoding="utf-8") for p in (site / "reference").glob("*.html"))
    for name in ("sonde.watch", "sonde.open", "sonde.Run.stats", "sonde.Watch.log", "sonde.trace"):
        assert f'id="{name}"' in text, name


def test_search_finds_a_page_when_the_site_is_opened_from_a_folder(site):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no browser here")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.context.set_offline(True)
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("/")
        page.get_by_placeholder("Search").press_sequentially("coordinate check")
        first = page.locator(".md-search-result__link").first
        first.wait_for(timeout=60_000)
        assert "coordinate" in first.inner_text().lower()
        browser.close()
