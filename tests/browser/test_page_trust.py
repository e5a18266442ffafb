"""What must not break the page or mislead who reads it, on runs of large and odd models."""

import re
from itertools import pairwise

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


def headers(page):
    """What the headers of groups say, by what they stand for."""
    return dict(
        page.locator(".heat-group").evaluate_all(
            "all => all.map(g => [g.dataset.group, g.querySelector('span').textContent])"
        )
    )


@pytest.mark.parametrize(
    ("run", "view", "pattern"),
    [
        ("llama80", "overview", r"(model\.embed_tokens|lm_head|\d+)$"),
        ("llama80", "layers", r"(model\.embed_tokens|lm_head|\d+)$"),
        ("mlp200", "overview", r"^\d+$"),
        ("mlp200", "layers", r"^\d+$"),
        ("t5", "layers", r"^(shared|lm_head|(encoder|decoder).*\b\d+)$"),
        ("moe", "layers", r"(\d+|lm_head)$"),
    ],
)
def test_groups_of_rows_are_named_with_their_index(
    made_server, open_page, made_ids, run, view, pattern
):
    page = open_page(made_server, f"#/{view}?run={made_ids[run]}&kind=param")
    for width in (1024, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        ready(page)
        shown = headers(page)
        assert len(shown) >= 5
        for text in shown.values():
            assert re.search(pattern, text), text
        boxes = page.locator(".heat-group").evaluate_all(
            "all => all.map(g => [g.offsetTop, g.offsetTop + g.offsetHeight])"
        )
        assert all(above[1] <= below[0] + 1 for above, below in pairwise(sorted(boxes)))


def test_many_rows_are_folded_into_groups_that_open(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/layers?run={made_ids['llama80']}&kind=param")
    heat = page.locator("[data-heat]")
    assert heat.get_attribute("data-rows") == "1124"
    assert heat.get_attribute("data-lines") == "82"
    header = page.locator('.heat-group[data-group="model.layers.2"]')
    assert header.get_attribute("aria-expanded") == "false"
    header.click()
    assert header.get_attribute("aria-expanded") == "true"
    assert heat.get_attribute("data-lines") == "96"  # its header stays, 14 rows come
    header.click()
    assert heat.get_attribute("data-lines") == "82"
    heat.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert heat.get_attribute("data-lines") == "96"


def test_few_rows_are_not_folded(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/layers?run={made_ids['diverged']}&kind=param")
    heat = page.locator("[data-heat]")
    rows = int(heat.get_attribute("data-rows"))
    assert int(heat.get_attribute("data-lines")) == rows + page.locator(".heat-group").count()
    assert page.locator('.heat-group[aria-expanded="true"]').count() == 3
