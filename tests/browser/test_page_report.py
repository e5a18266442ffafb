"""Reports open from a file, ask nobody, and pass the checks of the page."""

from pathlib import Path

import pytest
from browser_pages import ids, ready, serve, watch_page
from made_runs import HOSTILE, hostile, moe, steady, write
from page_checks import CHECKS, Look
from playwright.sync_api import expect

import sonde
from sonde.views.runs.run_list import RunList

LAYERS = 24
STEPS = 2000
LIMIT = 20_000_000


def wide(layers: int = LAYERS) -> dict[str, str]:
    """A transformer of which 200 tensors are recorded: three linear layers a block."""
    made = {"": "Model", "embed": "Embedding", "blocks": "ModuleList"}
    for i in range(layers):
        block = f"blocks.{i}"
        made |= {block: "Block", f"{block}.mlp": "Mlp", f"{block}.mlp.up": "Linear"}
        made |= {f"{block}.mlp.down": "Linear"}
    return made | {"norm": "LayerNorm", "head": "Linear"}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A run of 200 sites and 2,000 steps."""
    path = tmp_path_factory.mktemp("large") / "large"
    write(path, wide(), steps=range(STEPS), kinds=("output", "param"), size=steady)
    run = sonde.open(path)
    assert len(run.sites) >= 200
    return run


@pytest.fixture(scope="module")
def report(large):
    return large.to_html(Path(large.path).parent / "report.html")


@pytest.fixture
def open_report(browser):
    """`open_report(path)` gives a page on a file, or one that is blank. Any request but for files
    fails the test."""
    made = []

    def opened(path, hash="", **context):
        frame = browser.new_context(viewport={"width": 1440, "height": 900}, **context)
        frame.set_default_timeout(60_000)
        page = frame.new_page()
        page.seen = watch_page(page)
        if path is not None:
            page.goto(f"{Path(path).as_uri()}{hash}")
            ready(page)
        made.append(frame)
        frame.seen = page.seen
        return page

    yield opened
    for frame in made:
        frame.close()
        assert not frame.seen.errors, frame.seen.errors
        others = [u for u in frame.seen.requests if not u.startswith(("file:", "about:"))]
        assert not others, others


def look_at(page, base, run, id):
    return Look(page, base, id, run, "blocks", "blocks.0.mlp", "blocks.0.mlp.up", "output")


def id_of(page):
    """The run that the page has opened by itself."""
    page.wait_for_function("() => /run=\\w/.test(location.hash)")
    return page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('run')")


def test_a_large_run_fits(report):
    assert report.size_bytes <= LIMIT
    assert Path(report.path).stat().st_size == report.size_bytes
    assert not any("histograms of tensors" in one for one in report.left_out), report.left_out


def test_it_opens_from_a_file_and_says_what_was_left_out(report, open_report):
    page = open_report(report.path)
    expect(page.locator("[data-heat]")).to_be_visible()
    note = page.locator("[data-report]")
    note.locator("summary").click()
    for sentence in report.left_out:
        expect(note.locator("[data-left-out]")).to_contain_text(sentence)
    expect(page.locator(".statusbar")).to_contain_text("report")
    assert page.title() == "large · Sonde"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_passes_the_checks_of_the_page(report, large, open_report, check):
    page = open_report(None, bypass_csp=check.__name__ == "check_axe")
    check(look_at(page, Path(report.path).as_uri(), large, RunList(large.path).runs()[0].id))


@pytest.fixture(scope="module")
def large_server(large):
    with serve(large.path) as made:
        yield made


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_page_passes_them_too(large, large_server, open_page, check):
    page = open_page(large_server, "#/runs", width=1440, height=900, bypass_csp=True)
    check(look_at(page, large_server.base, large, ids(large_server)["large"]))


def test_what_it_does_not_hold_is_said_in_its_place(report, open_report):
    page = open_report(report.path)
    run = id_of(page)
    page.goto(f"{Path(report.path).as_uri()}#/layers?run={run}&norm=z")
    expect(page.locator(".heat-panel")).to_contain_text("This is not in the report")
    expect(page.locator(".timeline .uplot")).to_be_visible()
    expect(page.locator(".tree-line").first).to_be_visible()


def test_it_compares_with_another_run_and_has_tables_and_time_axes(tmp_path, open_report):
    one = sonde.open(write(tmp_path / "one", moe(2, 2)))
    other = write(
        tmp_path / "other",
        moe(2, 2),
        size=lambda site, step: steady(site, step) * (4 if step >= 8 else 1),
    )
    path = tmp_path / "report.html"
    one.to_html(path, compare_with=other)
    page = open_report(path)
    expect(page.locator("[data-verdict]")).to_have_attribute("data-verdict", "different")
    expect(page.locator("[data-compared]")).to_have_count(3)
    page.locator("[data-farthest] .mover").first.click()
    ready(page)
    expect(page.locator("[data-moved]")).to_have_text("shifted +2.00 octaves, distance 2.00")
    run = id_of(page).split(",")[0]
    page.goto(f"{path.as_uri()}#/layers?run={run}&kind=param&table=1&axis=loss&step=3")
    ready(page)
    rms = one.stats("lm_head.weight", "param", stat="rms", steps=3)["rms"].iloc[0]
    row = page.locator(".layer-rows tbody tr").filter(has_text="lm_head weight")
    assert float(row.locator("td").first.inner_text()) == pytest.approx(rms, rel=5e-3)
    expect(page.locator("[data-clock]")).to_be_visible()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_objects_parts_are_names_in_a_report_too(tmp_path_factory, open_report, name):
    folder = tmp_path_factory.getbasetemp() / "hostile-report"
    path = folder / "report.html"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        sonde.open(write(folder / "hostile", hostile())).to_html(path)
    page = open_report(path)
    run = id_of(page)
    page.goto(f"{path.as_uri()}#/explore?run={run}&at={name}&pins=A:{name}.constructor")
    ready(page)
    assert page.locator("[data-node]").count() == 1
    expect(page.locator('[data-pin="A"] [data-kymo]').first).to_be_visible()
    assert page.locator("[role=alert]").count() == 0


def test_names_that_want_to_be_markup_stay_text_in_a_report(runs, tmp_path, open_report):
    path = tmp_path / "strange.html"
    sonde.open(runs / "strange").to_html(path)
    page = open_report(path)
    for place in ("explore", "overview", "layers"):
        page.goto(f"{path.as_uri()}#/{place}?run={id_of(page)}")
        ready(page)
    inside = page.evaluate(
        """() => { const root = document.querySelector('#sonde').shadowRoot;
          return [window.hacked ?? null, root.querySelectorAll('script, img, iframe').length]; }"""
    )
    assert inside == [None, 0]


def test_it_works_inside_another_page(report, open_report, tmp_path, browser):
    """Trackers put a report into a frame without an address and without an origin of its own."""
    page = open_report(report.path)
    page.goto("about:blank")
    page.evaluate(
        """text => { const frame = document.createElement('iframe');
          frame.sandbox = 'allow-scripts'; frame.style = 'width:1200px;height:700px';
          frame.srcdoc = text; document.body.append(frame); }""",
        Path(report.path).read_text(),
    )
    inside = page.frame_locator("iframe")
    expect(inside.locator("[data-heat]")).to_be_visible()
    inside.get_by_role("button", name="Layers").click()
    expect(inside.locator(".layers [data-heat]")).to_be_visible()
