"""What must not break the page or mislead who reads it, on runs of large and odd models."""

import pytest
from browser_pages import ready
from made_runs import HOSTILE
from playwright.sync_api import expect


def test_modules_named_like_parts_of_objects_are_drawn_as_others(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/explore?run={made_ids['hostile']}")
    boxes = page.locator("[data-node]").evaluate_all("all => all.map(n => n.dataset.label)")
    assert boxes == list(HOSTILE)
    assert page.locator(".edge").count() == len(HOSTILE) - 1
    names = page.locator(".tree-name").all_inner_texts()
    assert names == ["Model", *(n for name in HOSTILE for n in (name, "constructor"))]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_module_with_such_a_name_can_be_opened_and_pinned(made_server, open_page, made_ids, name):
    page = open_page(
        made_server, f"#/explore?run={made_ids['hostile']}&at={name}&pins=A:{name}.constructor"
    )
    assert page.locator("[data-node]").count() == 1
    panel = page.locator('[data-pin="A"]')
    expect(panel).to_contain_text(f"{name}.constructor")
    expect(panel.locator("[data-kymo]").first).to_be_visible()
    page.evaluate(f"location.hash = '#/layers?run={made_ids['hostile']}&under={name}&kind=output'")
    page.locator("[data-heat]").wait_for()
    ready(page)
    assert page.locator("[data-heat]").get_attribute("data-rows") == "2"
    assert page.locator("[role=alert]").count() == 0


BROKEN = [
    ("level", "explore", "The graph", ["[data-pin] [data-kymo]", ".tree-line", ".timeline canvas"]),
    ("kymograph", "explore", "output 0", ["[data-node]", ".tree-line", ".timeline canvas"]),
    ("movers", "overview", "The list of movers", ["[data-heat]", ".tree-line", ".timeline canvas"]),
    ("heat", "overview", "The heatmap", [".mover-rows", ".tree-line", ".timeline canvas"]),
]


@pytest.mark.parametrize(("view", "on", "what", "others"), BROKEN)
def test_a_part_that_cannot_be_drawn_leaves_the_others(
    made_server, open_page, made_ids, view, on, what, others
):
    """An answer with holes, as a mistake of ours would give: one part says so, and can be left."""
    page = open_page(made_server, f"#/runs?run={made_ids['moe']}")
    page.seen.is_forgiving = True

    def spoil(route):
        found = route.fetch()
        body = found.body()
        for name in (b'"edges"', b'"rows"', b'"site"'):
            body = body.replace(name, name[:-2] + b'x"')
        route.fulfill(response=found, body=body)

    page.route(f"**/api/{view}?*", spoil)
    page.evaluate(f"location.hash = '#/{on}?run={made_ids['moe']}&pins=A:lm_head'")
    alert = page.get_by_role("alert").filter(has_text=f"{what} could not be drawn")
    alert.first.wait_for()
    for selector in others:
        expect(page.locator(selector).first).to_be_visible()
    page.unroute(f"**/api/{view}?*")
    page.evaluate(f"location.hash = '#/{on}?run={made_ids['t5']}&pins=A:shared'")
    ready(page)
    expect(page.get_by_role("alert")).to_have_count(0)
