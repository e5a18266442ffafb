"""What holds of a page whoever gives it its answers: a server, or a report that holds them."""

from dataclasses import dataclass

import pytest
from browser_pages import assert_accessible, ready
from playwright.sync_api import expect

import sonde

THIN = "\u202f"


@dataclass
class Look:
    """A page on a run, and what to look for: two modules, one inside the other, and a tensor."""

    page: object
    base: str
    id: str
    run: sonde.Run
    outer: str
    inner: str
    module: str
    kind: str

    def go(self, place: str, more: str = "") -> None:
        """Open the page anew at an address and wait until it is drawn."""
        self.page.goto("about:blank")  # else it is still ready as it was
        self.page.goto(f"{self.base}#/{place}?run={self.id}{more}")
        ready(self.page)


def check_overview(look):
    look.go("overview")
    page = look.page
    expect(page.locator("[data-heat]")).to_be_visible()
    expect(page.locator("[data-nonfinite]")).to_contain_text("All finite")
    expect(page.locator(".mover-rows li").first).to_be_visible()
    expect(page.locator(".timeline .uplot")).to_be_visible()
    recorded = look.run.info["steps"]["recorded"]
    expect(page.locator(".cards")).to_contain_text(f"{recorded:,} recorded".replace(",", THIN))


def check_numbers_of_the_heatmap(look):
    """The tip of a cell says what the run says of its steps."""
    look.go("layers", f"&kind={look.kind}&stat=rms")
    page = look.page
    plot = page.locator(".heat-plot")
    box = plot.bounding_box()
    row = float(page.locator("[data-heat]").get_attribute("data-row-height"))
    page.locator("[data-heat]").focus()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + row * 1.5)
    tip = page.locator(".tip")
    tip.wait_for()
    told = dict(
        zip(tip.locator("dt").all_inner_texts(), tip.locator("dd").all_inner_texts(), strict=True)
    )
    shown = next(float(v.replace("\u2212", "-")) for k, v in told.items() if k == "rms")
    rms = look.run.stats(kind=look.kind, stat="rms")["rms"]
    assert rms.min() * 0.99 <= shown <= rms.max() * 1.01
    assert (abs(rms - shown) <= 5e-3 * abs(shown)).any()


def check_a_cell_gives_its_histogram(look):
    """A click on a cell opens the tensor at a step; keys lead to its neighbours."""
    look.go("layers", f"&kind={look.kind}")
    page = look.page
    plot = page.locator(".heat-plot")
    box = plot.bounding_box()
    row = float(page.locator("[data-heat]").get_attribute("data-row-height"))
    plot.click(position={"x": box["width"] * 0.4, "y": row * 1.5})
    ready(page)
    drawer = page.locator("[data-drawer]")
    expect(drawer).to_contain_text("fp8 e4m3")
    at = drawer.locator("[data-drawer-step]")
    before = at.inner_text()
    assert int(before.removeprefix("step ").replace(THIN, "")) > 0
    drawer.get_by_role("button", name="Next recorded step").click()
    expect(at).not_to_have_text(before)
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)


def check_step_zero_can_be_chosen(look):
    """A click on the first point of the loss moves the cursor to step 0."""
    look.go("overview")
    page = look.page
    page.locator(".timeline .over").click(position={"x": 0, "y": 20})
    page.mouse.move(5, 5)
    expect(page.locator("[data-cursor-step]")).to_have_text("0")
    page.wait_for_function("() => /[?&]step=0(&|$)/.test(location.hash)")


def check_numbers_at_the_cursor(look):
    """A panel tells the extremes of its tensor at the first step."""
    look.go("explore", f"&pins=A:{look.module}&step=0")
    numbers = look.page.locator(f'[data-site-name="{look.module}/{look.kind}/0"] .kymo-numbers')
    expect(numbers).to_be_visible()
    text = numbers.inner_text().replace("\u2212", "-").split()
    told = dict(zip(text[::2], map(float, text[1::2]), strict=True))
    steps = look.run.stats(look.module, kind=look.kind, stat=["min", "max"], steps=(0, 7))
    assert any(told["min"] == pytest.approx(v, rel=5e-3) for v in steps["min"])
    assert any(told["max"] == pytest.approx(v, rel=5e-3) for v in steps["max"])


def check_the_graph_opens(look):
    look.go("explore")
    page = look.page
    labels = "all => all.map(n => n.dataset.label)"
    assert any(look.outer in one for one in page.locator("[data-node]").evaluate_all(labels))
    look.go("explore", f"&at={look.inner}")
    assert page.locator("[data-node]").count() > 1
    assert page.locator(".crumbs .crumb").count() >= 2
    page.locator("[data-node]").first.click()
    expect(page.locator("[data-preview] [data-section]").first).to_be_visible()


def check_search(look):
    look.go("explore")
    page = look.page
    page.get_by_label("Filter modules").fill(look.module)
    expect(page.locator(".tree-list .tree-name").first).to_have_text(look.module)


def check_theme(look):
    look.go("overview")
    root = look.page.locator("#sonde")
    before = root.get_attribute("data-theme")
    look.page.keyboard.press("t")
    expect(root).not_to_have_attribute("data-theme", before)
    look.page.keyboard.press("t")


def check_axe(look):
    for place, more in (
        ("overview", ""),
        ("explore", f"&pins=A:{look.module}"),
        ("layers", f"&kind={look.kind}&site={look.module}/{look.kind}/0"),
    ):
        look.go(place, more)
        assert_accessible(look.page)


CHECKS = [
    check_overview,
    check_numbers_of_the_heatmap,
    check_a_cell_gives_its_histogram,
    check_step_zero_can_be_chosen,
    check_numbers_at_the_cursor,
    check_the_graph_opens,
    check_search,
    check_theme,
    check_axe,
]
