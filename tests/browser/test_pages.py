"""Pages, states, themes, strangers' names, and what assistive technology sees."""

import re

import pytest
from browser_pages import assert_accessible, ready
from browser_runs import LONG, QUOTES, XSS
from playwright.sync_api import expect


def test_the_list_shows_all_runs_and_opens_one(server, open_page):
    page = open_page(server)
    rows = page.locator("[data-run]")
    assert rows.evaluate_all("all => all.map(r => r.dataset.run)") == [
        "strange",
        "cnn",
        "transformer",
    ]
    row = page.locator('[data-run="transformer"]')
    expect(row).to_contain_text("finished")
    expect(row).to_contain_text("23")
    assert len(row.locator(".spark-line").get_attribute("d")) > 50
    row.get_by_role("link").click()
    ready(page)
    expect(page.locator("[data-heat]")).to_be_visible()
    page.go_back()
    ready(page)
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()


def test_a_single_run_is_opened_at_once(open_page, start, runs):
    page = open_page(start(runs / "transformer"))
    expect(page.locator("[data-heat]")).to_be_visible()
    expect(page).to_have_url(re.compile(re.escape("#/overview?run=transformer")))


def test_an_empty_folder_says_how_to_record(open_page, start, tmp_path):
    page = open_page(start(tmp_path))
    expect(page.get_by_text("sonde.watch(model")).to_be_visible()
    expect(page.get_by_text(str(tmp_path))).to_be_visible()


def test_the_overview_tells_what_is_not_finite_first(server, open_page, run_ids):
    page = open_page(server, f"#/overview?run={run_ids['cnn']}")
    card = page.locator("[data-nonfinite]")
    expect(card).to_contain_text("Not finite")
    expect(card).to_contain_text("since step 16, first in")
    expect(card.get_by_role("button")).to_have_text("(root) input 0")  # it came with the data
    assert int(card.get_attribute("data-nonfinite")) > 0
    page = open_page(server, f"#/overview?run={run_ids['transformer']}")
    expect(page.locator("[data-nonfinite]")).to_contain_text("All finite")
    expect(page.locator(".mover-rows li").first).to_be_visible()


def test_a_click_on_the_heatmap_opens_the_cell(server, open_page, run_ids):
    page = open_page(server, f"#/overview?run={run_ids['transformer']}&kind=output")
    plot = page.locator(".heat-plot")
    box = plot.bounding_box()
    row_height = float(page.locator("[data-heat]").get_attribute("data-row-height"))
    plot.click(position={"x": box["width"] * (10.5 / 24), "y": row_height * 1.5})
    ready(page)
    drawer = page.locator("[data-drawer]")
    expect(drawer.locator("[data-drawer-step]")).to_have_text("step 10")
    expect(drawer).to_contain_text("fp8 e4m3")
    expect(drawer).to_contain_text("rms")
    page.keyboard.press("ArrowRight")
    expect(drawer.locator("[data-drawer-step]")).to_have_text("step 11")
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)


def test_the_heatmap_shows_the_numbers_of_the_run(server, open_page, run_ids, runs):
    import sonde

    page = open_page(server, f"#/layers?run={run_ids['transformer']}&kind=param&stat=rms")
    plot = page.locator(".heat-plot")
    box = plot.bounding_box()
    row_height = float(page.locator("[data-heat]").get_attribute("data-row-height"))
    page.mouse.move(box["x"] + box["width"] * (5.5 / 24), box["y"] + row_height * 0.5)
    tip = page.locator(".tip")
    expect(tip).to_contain_text("step 5")
    expect(tip).to_contain_text("embed weight")
    value = sonde.open(runs / "transformer").stats("embed*", kind="param", stat="rms")
    wanted = float(value[value["step"] == 5]["rms"].iloc[0])
    told = tip.locator("dd").nth(1).inner_text()
    assert float(told) == pytest.approx(wanted, rel=5e-3)


def test_dragging_in_the_timeline_chooses_a_window_for_all(server, open_page, run_ids):
    page = open_page(server, f"#/layers?run={run_ids['transformer']}&pins=A:head")
    over = page.locator(".timeline .over")
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20, steps=5)
    page.mouse.up()
    page.wait_for_function("() => location.hash.includes('x=6:11')")
    page.wait_for_timeout(400)  # the question follows once the window stands still
    ready(page)
    assert page.locator("[data-heat]").get_attribute("data-columns") == "6"
    assert page.locator(".kymo-body").first.get_attribute("data-columns") == "6"
    page.keyboard.press("0")
    page.wait_for_timeout(400)
    ready(page)
    assert page.locator("[data-heat]").get_attribute("data-columns") == "24"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_can_be_changed(server, open_page, run_ids, scheme):
    page = open_page(server, f"#/overview?run={run_ids['cnn']}", color_scheme=scheme)
    root = page.locator("#sonde")
    assert root.get_attribute("data-theme") == scheme
    ground = page.evaluate("getComputedStyle(document.querySelector('#sonde')).backgroundColor")
    light = sum(int(v) for v in ground[4:-1].split(",")) / 3
    assert (light > 200) == (scheme == "light")
    page.keyboard.press("t")
    expect(root).not_to_have_attribute("data-theme", scheme)


def test_the_search_has_the_focus_before_the_next_key_can_come(server, open_page, run_ids):
    page = open_page(server, f"#/explore?run={run_ids['transformer']}")
    role = page.evaluate(
        """async () => {
          document.dispatchEvent(new KeyboardEvent("keydown", {key: "/", bubbles: true}));
          for (let i = 0; i < 10; i++) await null;  // no frame passes meanwhile, and no event
          return document.querySelector("#sonde").shadowRoot.activeElement?.getAttribute("role");
        }"""
    )
    assert role == "combobox"


def test_names_of_strangers_are_shown_as_text(server, open_page, run_ids):
    page = open_page(server, f"#/explore?run={run_ids['strange']}")
    labels = page.eval_on_selector_all("[data-node]", "all => all.map(n => n.dataset.label)")
    assert XSS in labels
    assert any(label.startswith(QUOTES[:6]) for label in labels)
    assert any(label.startswith("www") and len(label) < len(LONG) for label in labels)
    page.locator("[data-node]").nth(1).hover()
    page.locator("[data-node]").nth(1).click()
    page.keyboard.press("p")
    ready(page)
    page.keyboard.press("/")
    page.keyboard.type("script")
    page.get_by_role("dialog").get_by_role("option").first.wait_for()
    page.keyboard.press("Escape")
    for name in ("overview", "layers"):
        page.goto(f"{server.base}#/{name}?run={run_ids['strange']}&line={XSS}")
        ready(page)
    inside = page.evaluate(
        """() => { const root = document.querySelector('#sonde').shadowRoot;
          return [window.hacked ?? null, root.querySelectorAll('script, img, iframe').length]; }"""
    )
    assert inside == [None, 0]


def test_a_run_that_is_not_there_says_so_and_leads_back(server, open_page):
    page = open_page(server, "#/overview?run=gone-123456", is_ready=False)
    page.seen.is_forgiving = True
    expect(page.get_by_text("This run is not here")).to_be_visible()
    page.get_by_role("button", name="Show all runs").click()
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.seen.errors.clear()


def test_a_node_that_is_not_there_does_not_take_the_page_with_it(server, open_page, run_ids):
    page = open_page(
        server, f"#/explore?run={run_ids['cnn']}&at=no.such&pins=A:nor.this", is_ready=False
    )
    page.seen.is_forgiving = True
    expect(page.get_by_text("The graph: nothing to show")).to_be_visible()
    expect(page.get_by_text("This panel: nothing to show")).to_be_visible()
    expect(page.locator(".timeline .uplot")).to_be_visible()
    page.seen.errors.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "view",
    [
        "#/runs",
        "#/overview?run={cnn}",
        "#/explore?run={transformer}&pins=A:embed,B:head",
        "#/layers?run={transformer}&kind=output&site=head/output/0",
        "#/layers?run={transformer}&kind=output&table=1",
        "#/compare?run={transformer},{cnn}&kind=output",
        "#/compare?run={transformer}",
    ],
)
def test_axe_finds_no_serious_violation(server, open_page, run_ids, view, scheme):
    page = open_page(server, view.format(**run_ids), color_scheme=scheme, bypass_csp=True)
    assert_accessible(page)


def test_the_token_leaves_the_address_and_is_needed(server, open_page, browser):
    with browser.new_context() as stranger:
        assert stranger.request.get(server.base).status == 401
    page = open_page(server, "#/runs")
    page.context.clear_cookies()
    page.goto(server.address)
    ready(page)
    expect(page).not_to_have_url(re.compile("token"))
    assert server.address.partition("=")[2] not in page.content()
