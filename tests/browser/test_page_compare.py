"""Two runs on the page: the verdict, three heatmaps with one cursor, both histograms."""

import re

import numpy as np
import pytest
from browser_pages import ids, ready, serve
from made_runs import moe, steady, write
from playwright.sync_api import expect

CHANGED = "model.layers.1.gate"
STEP = 8


def larger(site, step):
    """Four times as large in one module from a step on."""
    is_changed = site.module == CHANGED and site.kind == "param" and step >= STEP
    return steady(site, step) * (4 if is_changed else 1)


def renamed():
    return {path.replace("lm_head", "head"): kind for path, kind in moe(2, 2).items()}


@pytest.fixture(scope="module")
def pair_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write(folder / "base", moe(2, 2))
    write(folder / "twin", moe(2, 2))
    write(folder / "larger", moe(2, 2), size=larger)
    write(folder / "renamed", renamed())
    write(folder / "deeper", moe(3, 2))
    with serve(folder) as made:
        yield made


@pytest.fixture(scope="module")
def pair_ids(pair_server):
    return ids(pair_server)


def opened(open_page, server, found, *names, more="", **options):
    runs = ",".join(found[name] for name in names)
    return open_page(server, f"#/compare?run={runs}{more}", **options)


def test_a_run_is_chosen_to_compare_with(pair_server, open_page, pair_ids):
    page = opened(open_page, pair_server, pair_ids, "base")
    picker = page.locator("[data-picker]")
    expect(picker.get_by_role("button")).to_have_count(4)
    picker.get_by_role("button", name="larger").click()
    ready(page)
    expect(page.locator("[data-verdict]")).to_have_attribute("data-verdict", "different")
    page.go_back()
    expect(picker).to_be_visible()


def test_twins_have_no_difference_on_the_page(pair_server, open_page, pair_ids):
    page = opened(open_page, pair_server, pair_ids, "base", "twin")
    expect(page.locator("[data-verdict]")).to_have_attribute("data-verdict", "identical")
    expect(page.locator("[data-headline]")).to_contain_text("No difference")
    expect(page.locator("[data-farthest]")).to_have_count(0)
    colours = page.locator('[data-compared="difference"] .heat-plot canvas').evaluate(
        """canvas => {
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const seen = new Set();
            for (let i = 0; i < data.length; i += 4)
                if (data[i + 3]) seen.add([data[i], data[i + 1], data[i + 2]].join());
            return [...seen];
        }"""
    )
    shades = [tuple(map(int, c.split(","))) for c in colours]
    assert all(max(c) - min(c) < 20 for c in shades), shades  # the grey in the middle, and headers


def test_the_first_difference_leads_to_the_cell_with_both_histograms(
    pair_server, open_page, pair_ids
):
    page = opened(open_page, pair_server, pair_ids, "base", "larger")
    expect(page.locator("[data-headline]")).to_contain_text(f"differ at step {STEP}")
    page.locator(".verdict").get_by_role("button", name=f"step {STEP}").click()
    ready(page)
    expect(page.locator("[data-drawer-step]")).to_have_text(f"step {STEP}")
    expect(page.locator("[data-moved]")).to_have_text("shifted +2.00 octaves, distance 2.00")
    expect(page.locator("[data-histograms]")).to_be_visible()
    expect(page).to_have_url(re.compile(f"[?&]step={STEP}(&|$)"))
    far = page.locator("[data-farthest] .mover").first
    expect(far).to_contain_text(CHANGED)
    expect(far).to_contain_text("+2.00, distance 2.00")


def test_three_heatmaps_share_rows_and_cursor(pair_server, open_page, pair_ids):
    page = opened(open_page, pair_server, pair_ids, "base", "larger", more="&kind=param")
    cells = page.locator("[data-compared]")
    expect(cells).to_have_count(3)
    heats = page.locator("[data-heat]")
    rows = heats.evaluate_all("all => all.map(h => [h.dataset.lines, h.dataset.rowHeight])")
    assert len({tuple(r) for r in rows}) == 1
    plot = page.locator(".heat-plot").nth(2)
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.4)
    lines = page.locator(".heat-plot .hover-line")
    expect(lines).to_have_count(3)
    assert len(set(lines.evaluate_all("all => all.map(l => l.style.left)"))) == 1
    marked = page.locator(".row-hover").evaluate_all("all => all.map(m => m.style.top)")
    assert len(marked) == 3
    assert len(set(marked)) == 1
    tip = page.locator(".tip")
    expect(tip).to_contain_text("log2(A/B)")
    expect(tip).to_contain_text("in A")


def test_the_pixels_of_the_difference_are_blue_where_the_second_run_is_larger(
    pair_server, open_page, pair_ids
):
    page = opened(
        open_page, pair_server, pair_ids, "base", "larger", more=f"&kind=param&under={CHANGED}"
    )
    canvas = page.locator('[data-compared="difference"] .heat-plot canvas')
    pixel = """(canvas, x) => {
        const at = Math.floor(canvas.width * x);
        return [...canvas.getContext("2d").getImageData(at, canvas.height - 3, 1, 1).data];
    }"""
    before, after = canvas.evaluate(pixel, 0.2), canvas.evaluate(pixel, 0.9)
    assert np.ptp(before[:3]) < 20
    assert after[2] > after[0] + 60


def test_what_only_one_run_has_comes_first_and_is_matched_by_hand(pair_server, open_page, pair_ids):
    page = opened(open_page, pair_server, pair_ids, "base", "deeper")
    added = page.locator('[data-difference="added"]')
    expect(added).to_contain_text("Only in B")
    assert (
        page.locator(".differences").bounding_box()["y"]
        < (page.locator(".heat-grid").bounding_box()["y"])
    )
    page = opened(open_page, pair_server, pair_ids, "base", "renamed")
    expect(page.locator('[data-difference="renamed"]')).to_contain_text("Renamed")
    page.locator('[data-difference="renamed"] summary').click()
    expect(page.locator('[data-difference="renamed"]')).to_contain_text("lm_head → head")


def test_more_runs_are_small_multiples(pair_server, open_page, pair_ids):
    page = opened(open_page, pair_server, pair_ids, "base", "twin", "larger", "renamed")
    expect(page.locator("[data-verdict]")).to_have_count(3)
    expect(page.locator('[data-compared="run"]')).to_have_count(1)
    expect(page.locator('[data-compared="difference"]')).to_have_count(3)
    ramps = page.locator('[data-compared="difference"] .legend .ramp').all_inner_texts()
    assert len(set(ramps)) == 1
    page.locator(".verdict").get_by_role("button", name=re.compile("larger")).click()
    ready(page)
    expect(page).to_have_url(re.compile(f"[?&]vs={pair_ids['larger']}(&|$)"))
    expect(page.locator("[data-farthest]")).to_be_visible()


def test_distance_takes_the_place_of_the_ratio(pair_server, open_page, pair_ids):
    page = opened(open_page, pair_server, pair_ids, "base", "larger", more="&kind=param")
    page.get_by_role("button", name="distance", exact=True).click()
    ready(page)
    expect(page.locator('[data-compared="difference"]')).to_contain_text("Distance in octaves")
    expect(page).to_have_url(re.compile("[?&]by=distance(&|$)"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1024, 1440, 1920])
def test_nothing_is_cut_off(pair_server, open_page, pair_ids, width, scheme):
    page = opened(
        open_page,
        pair_server,
        pair_ids,
        "base",
        "larger",
        width=width,
        height=900,
        color_scheme=scheme,
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for plot in page.locator(".heat-plot").all():
        box = plot.bounding_box()
        assert box["width"] > 90
        assert box["height"] > 60
        assert box["x"] + box["width"] <= width
