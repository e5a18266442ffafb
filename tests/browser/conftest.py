"""A real browser on a real server on real runs. Any error on the page fails the test.

The browser is the one that `make system` finds or installs; Playwright drives it and brings none.
"""

import os
import shutil
from urllib.parse import urlsplit

import pytest
from browser_pages import ids, ready, serve, watch_page
from browser_runs import record_cnn, record_strange, record_transformer
from made_runs import write_all
from playwright.sync_api import sync_playwright

HOW = "The page is tested in Chromium. `make system` installs it; $CHROMIUM names another one."
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_MS = 30_000  # shared machines are slow at times; nothing waits as long when all is well


@pytest.fixture(scope="session")
def browser():
    """Chromium, one for all tests of a worker."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(HOW, pytrace=False)
    arguments = [
        "--no-sandbox",  # Chromium refuses to start as root with it
        "--disable-dev-shm-usage",  # in containers it is too small
        "--no-proxy-server",
        "--disable-background-networking",
        "--no-first-run",
    ]
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=found, args=arguments, timeout=4 * TIMEOUT_MS
        )
        yield made
        made.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with a transformer, a network for images, and a run with the strangest names."""
    folder = tmp_path_factory.mktemp("runs")
    record_transformer(folder)
    record_cnn(folder)
    record_strange(folder)
    return folder


@pytest.fixture(scope="session")
def server(runs):
    """The server on all recorded runs, with a token."""
    with serve(runs) as made:
        yield made


@pytest.fixture(scope="session")
def made_server(tmp_path_factory):
    """A server on runs of large and odd models: see `made_runs`."""
    folder = tmp_path_factory.mktemp("made")
    write_all(folder)
    with serve(folder) as made:
        yield made


@pytest.fixture(scope="session")
def made_ids(made_server):
    """Ids of the made runs by name."""
    return ids(made_server)


@pytest.fixture
def start():
    """`start(folder)` starts a server that ends after the pages that looked at it."""
    made = []

    def started(*arguments, **more):
        made.append(serve(*arguments, **more))
        return made[-1]

    yield started
    for server in made:
        server.stop()


@pytest.fixture
def open_page(browser, start):
    """`open_page(server, "#/explore?...")` gives a page that is ready. Checked at the end."""
    made = []

    def opened(server, hash="", *, width=1280, height=800, is_ready=True, **context):
        frame = browser.new_context(viewport={"width": width, "height": height}, **context)
        frame.set_default_timeout(TIMEOUT_MS)
        if "?token=" in server.address:
            frame.request.get(server.address)  # brings the cookie
        page = frame.new_page()
        seen = watch_page(page)
        made.append((frame, seen, server))
        page.goto(f"{server.base}{hash}")
        if is_ready:
            ready(page)
        page.seen = seen
        return page

    yield opened
    for frame, seen, server in made:
        frame.close()
        assert not seen.errors, seen.errors
        assert seen.hosts <= {urlsplit(server.address).netloc}, seen.hosts


@pytest.fixture(scope="session")
def run_ids(server):
    """Ids of the recorded runs by name."""
    return ids(server)
