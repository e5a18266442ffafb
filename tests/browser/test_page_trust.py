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
    assert panel.locator("h2 bdi").get_attribute("dir") == "ltr"  # else `__` moves to the end
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
    expect(header).to_have_attribute("aria-expanded", "true")
    expect(heat).to_have_attribute("data-lines", "96")  # its header stays, 14 rows come
    header.click()
    expect(heat).to_have_attribute("data-lines", "82")
    heat.focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(heat).to_have_attribute("data-lines", "96")


def test_few_rows_are_not_folded(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/layers?run={made_ids['diverged']}&kind=param")
    heat = page.locator("[data-heat]")
    rows = int(heat.get_attribute("data-rows"))
    assert int(heat.get_attribute("data-lines")) == rows + page.locator(".heat-group").count()
    assert page.locator('.heat-group[aria-expanded="true"]').count() == 3


@pytest.mark.parametrize("stat", ["rms", "rm8", "p99", "min_abs"])
def test_the_alarm_does_not_depend_on_the_statistic(made_server, open_page, made_ids, stat):
    page = open_page(made_server, f"#/overview?run={made_ids['broken']}&stat={stat}")
    card = page.locator("[data-nonfinite]")
    expect(card).to_contain_text("Not finite")
    expect(card).to_contain_text("since step 8, first in")
    assert card.get_attribute("data-nonfinite") == "5"  # the output, two parameters, two gradients


def test_a_run_that_ended_without_a_step_is_not_waited_for(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/overview?run={made_ids['empty']}")
    expect(page.locator(".heat-panel")).to_contain_text("This run has no recorded steps")
    assert page.get_by_text("Waiting").count() == 0
    assert page.get_by_text("All finite").count() == 0
    expect(page.locator(".card").first).to_contain_text("No tensor was recorded.")
    expect(page.locator(".cards")).to_contain_text("no steps")
    page.evaluate(f"location.hash = '#/layers?run={made_ids['empty']}'")
    ready(page)
    expect(page.locator(".heat-panel")).to_contain_text("This run has no recorded steps")


def test_a_window_without_tensors_is_not_called_finite(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/overview?run={made_ids['broken']}&phase=validation")
    expect(page.locator('[data-nonfinite="none"]')).to_contain_text("No tensor was recorded")
    assert page.get_by_text("All finite").count() == 0


def test_a_run_that_was_killed_shows_what_it_had(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/overview?run={made_ids['killed']}")
    expect(page.locator("[data-heat]")).to_be_visible()
    expect(page.locator(".cards")).to_contain_text("12 recorded")
    expect(page.locator("[data-run-status]")).to_contain_text("died without closing the run")
    assert page.get_by_text("Waiting").count() == 0


def test_what_was_not_logged_yet_has_no_value(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/overview?run={made_ids['broken']}&step=2")
    line = page.locator('[data-line="validation"] dd')
    expect(line).to_have_text("–")
    page.evaluate(f"location.hash = '#/overview?run={made_ids['broken']}&step=7'")
    expect(line).to_have_text("0.5")


@pytest.mark.parametrize("view", ["explore", "layers", "overview"])
def test_a_page_without_a_run_is_the_list(made_server, open_page, view):
    page = open_page(made_server, f"#/{view}")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(page.locator('[data-run="moe"]')).to_be_visible()


def test_all_places_count_the_same_steps(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/overview?run={made_ids['twin-a']}")
    expect(page.locator(".cards")).to_contain_text("20 recorded")
    expect(page.locator(".status-text")).to_contain_text("20 recorded steps")
    expect(page.locator("[data-notes]")).to_contain_text("20 train steps with param_grad")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_two_runs_are_told_apart_by_name_and_colour(made_server, open_page, made_ids, theme):
    address = f"#/overview?run={made_ids['twin-a']},{made_ids['twin-b']}&th={theme}"
    page = open_page(made_server, address, width=1024)
    lines = page.locator("[data-line]").evaluate_all(
        """all => all.map(l => [l.dataset.line, l.querySelector('line').getAttribute('stroke')])"""
    )
    assert [name for name, _ in lines] == ["twin-a train", "twin-b train"]
    chips = page.locator(".chip [data-run-colour]").evaluate_all(
        "all => all.map(c => getComputedStyle(c).backgroundColor)"
    )
    wanted = [tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for _, colour in lines]
    assert [tuple(map(int, re.findall(r"\d+", c))) for c in chips] == wanted
    assert wanted[0] != wanted[1]


def test_alternating_modules_and_calls_of_one_cell_are_folded(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/explore?run={made_ids['mlp200']}")
    assert page.locator("[data-node]").count() == 2
    assert page.locator("[data-node] .times-text").all_text_contents() == ["×200", "×200"]
    names = page.locator(".tree-name").all_inner_texts()
    assert names == ["Sequential", "0…398", "1…399"]
    page.evaluate(f"location.hash = '#/explore?run={made_ids['rnn50']}'")
    cell = page.locator('[data-node="cell"]')
    cell.wait_for()
    assert page.locator("[data-node]").count() == 2
    assert cell.locator(".times-text").text_content() == "×50"
    assert cell.locator(".alike .node-type").text_content() == "#0"


def test_a_module_without_parameters_says_so(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/explore?run={made_ids['mlp200']}&kind=param_grad")
    expect(page.locator('[data-node="1"]')).to_contain_text("no parameters")
    assert page.locator("svg.graph-world, .graph").get_by_text("not recorded").count() == 0


@pytest.mark.parametrize(
    ("run", "kind", "words"),
    [
        ("tied", "param_grad", "shared: see the other owner"),
        ("tied", "param", "shared: see the other owner"),
        ("frozen", "param_grad", "frozen or unused"),
        ("gradients", "param_grad", "shared or frozen"),
        ("narrow", "param_grad", "not recorded"),
        ("narrow", "output_grad", "not recorded"),
    ],
)
def test_a_box_says_why_it_has_no_value(made_server, open_page, made_ids, run, kind, words):
    """Tied, frozen, either of the two where parameters were not recorded, or not asked for."""
    page = open_page(made_server, f"#/explore?run={made_ids[run]}&kind={kind}")
    expect(page.locator('[data-node="lm_head"]')).to_contain_text(words)


def test_the_legend_covers_no_box(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/explore?run={made_ids['hostile']}", width=1024, height=720)
    legend = page.locator("[data-tint-legend]").bounding_box()
    for box in page.locator("[data-node]").all():
        place = box.bounding_box()
        assert place["y"] + place["height"] <= legend["y"]


@pytest.mark.parametrize("width", [1024, 1440, 1920])
def test_no_number_of_a_card_is_cut(made_server, open_page, made_ids, width):
    page = open_page(made_server, f"#/overview?run={made_ids['llama80']}", width=width)
    cut = page.locator(".card p").evaluate_all(
        "all => all.filter(p => p.scrollWidth > p.clientWidth + 1).map(p => p.textContent)"
    )
    assert cut == []


def test_a_tensor_that_is_not_there_is_named_and_can_be_closed(made_server, open_page, made_ids):
    address = f"#/layers?run={made_ids['moe']}&site=nowhere/output/0"
    page = open_page(made_server, address, is_ready=False)
    page.seen.is_forgiving = True
    drawer = page.locator("[data-drawer]")
    expect(drawer.locator("code")).to_have_text("nowhere/output/0")
    head, title = drawer.locator(".drawer-head"), drawer.locator("h3")
    below = head.bounding_box()["y"] + head.bounding_box()["height"]
    assert title.bounding_box()["y"] >= below
    drawer.get_by_role("button", name="Close").click()
    expect(drawer).to_have_count(0)


def test_what_moves_below_all_normal_numbers_is_no_mover(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/overview?run={made_ids['subnormal']}&kind=output")
    movers = page.locator(".mover-name").all_inner_texts()
    assert movers
    assert not any("lm_head" in name for name in movers[:5])


def test_boxes_count_as_the_tree_does(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/explore?run={made_ids['llama80']}&at=model")
    box = page.locator('[data-node][data-label="layers[0…79]"]')
    step = box.locator(".alike .node-type")
    assert step.text_content() == "0"
    box.locator('[data-button="on"]').click()
    expect(step).to_have_text("1")
    expect(box.locator(".node-name")).to_have_text("layers[1]")


def test_colours_of_boxes_have_a_legend(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/explore?run={made_ids['normal']}&kind=param")
    legend = page.locator("[data-tint-legend]")
    expect(legend).to_contain_text("rms of param")
    low, high = (float(n) for n in legend.locator(".number").all_inner_texts())
    assert high / low == pytest.approx(2, rel=0.01)  # all are 1: equal values have one colour
    page.evaluate(f"location.hash = '#/explore?run={made_ids['broken']}&at=model.layers.1'")
    expect(legend).to_contain_text("NaN or infinite")


def test_the_filter_of_the_tree_finds_what_the_search_finds(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/explore?run={made_ids['llama80']}")
    page.get_by_label("Filter modules").fill("q_proj")
    tree = page.locator(".tree-list")
    expect(tree.get_by_text("model.layers.79.self_attn.q_proj")).to_have_count(0)  # below, unseen
    expect(tree.locator(".tree-line").first).to_have_attribute("aria-setsize", "80")
    page.get_by_label("Filter modules").fill("layers.79 q_proj")
    expect(tree.locator(".tree-name")).to_have_text(["model.layers.79.self_attn.q_proj"])
    tree.locator(".tree-line").first.click()
    page.wait_for_function("() => location.hash.includes('on=model.layers.79.self_attn.q_proj')")
    page.get_by_label("Filter modules").fill("no such module")
    expect(tree).to_contain_text("No module matches.")


def test_the_root_has_a_name_of_its_own(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/layers?run={made_ids['moe']}&kind=output&site=./output/0")
    expect(page.locator("[data-drawer] h2")).to_have_text("(root) output 0")
    page.locator("[data-heat]").hover(position={"x": 600, "y": 6})
    expect(page.locator(".tip-title")).to_contain_text("(root)")


def test_arrow_keys_walk_recorded_steps(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/layers?run={made_ids['irregular']}&step=4")
    cursor = page.locator("[data-cursor-step]")
    for step in ("5", "12", "19", "26"):
        page.keyboard.press("ArrowRight")
        expect(cursor).to_have_text(step)
    page.keyboard.press("ArrowLeft")
    expect(cursor).to_have_text("19")


def test_the_open_tensor_follows_the_row(made_server, open_page, made_ids):
    address = f"#/layers?run={made_ids['diverged']}&kind=param"
    page = open_page(made_server, f"{address}&site=model.layers.0.gate/param/weight")
    title = page.locator("[data-drawer] h2")
    expect(title).to_have_text("model.layers.0.gate weight")
    page.locator("[data-heat]").focus()
    page.keyboard.press("ArrowDown")
    expect(title).to_have_text("model.layers.0.gate bias")
    page.keyboard.press("ArrowUp")
    expect(title).to_have_text("model.layers.0.gate weight")


@pytest.mark.parametrize("view", ["layers", "overview"])
def test_the_heatmap_and_the_timeline_share_their_axis(made_server, open_page, made_ids, view):
    page = open_page(made_server, f"#/{view}?run={made_ids['diverged']}")
    for width in (1024, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            """() => {
              const root = document.querySelector('#sonde').shadowRoot;
              const box = s => root.querySelector(s).getBoundingClientRect();
              const [heat, line] = [box('.heat-plot'), box('.timeline .over')];
              return ['left', 'right'].every(side => Math.abs(heat[side] - line[side]) < 1.5);
            }"""
        )
    heat = page.locator(".heat-plot .cursor-line").bounding_box()
    line = page.locator(".timeline .cursor-line").bounding_box()
    assert heat["x"] == pytest.approx(line["x"], abs=1.5)


def test_many_runs_leave_room_for_everything_else(made_server, open_page, made_ids):
    names = ["llama80", "mlp200", "diverged", "twin-a", "twin-b", "irregular"]
    page = open_page(
        made_server, f"#/overview?run={','.join(made_ids[n] for n in names)}", width=1024
    )
    bar = page.locator(".topbar")
    assert bar.evaluate("bar => bar.scrollWidth <= bar.clientWidth")
    boxes = bar.locator(".tab, .searchbox, .livestate, .button, .chips").evaluate_all(
        "all => all.map(e => e.getBoundingClientRect()).map(b => [b.left, b.right])"
    )
    assert all(a[1] <= b[0] + 1 for a, b in pairwise(sorted(boxes)))
    assert page.locator(".chip").count() == len(names)


def test_no_text_is_smaller_than_twelve_pixels(made_server, open_page, made_ids):
    run = made_ids["broken"]
    page = open_page(
        made_server, f"#/explore?run={run}&at=model.layers.1&pins=A:model.layers.1.gate"
    )
    smallest = """() => {
      const small = [];
      const walk = document.createTreeWalker(
        document.querySelector('#sonde').shadowRoot, NodeFilter.SHOW_TEXT);
      for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        const element = node.parentElement;
        if (!node.textContent.trim() || element.closest('style, title, option, sup')) continue;
        const size = parseFloat(getComputedStyle(element).fontSize);
        if (size < 12) small.push(`${size} ${node.textContent}`);
      }
      return small;
    }"""
    assert page.evaluate(smallest) == []
    for view in (f"layers?run={run}&kind=param&site=lm_head/param/weight", f"overview?run={run}"):
        page.evaluate(f"location.hash = '#/{view}'")
        page.locator("[data-heat]").wait_for()
        ready(page)
        assert page.evaluate(smallest) == []


def test_the_keyboard_skips_the_bars_and_stops_once_at_the_movers(made_server, open_page, made_ids):
    page = open_page(made_server, f"#/overview?run={made_ids['broken']}")
    focused = "() => document.querySelector('#sonde').shadowRoot.activeElement?.className"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate(focused) == "centre"
    expect(page.locator("h1")).to_have_text("broken: overview")
    stops = page.locator(".mover-rows button").evaluate_all(
        "all => all.filter(b => b.tabIndex === 0).length"
    )
    assert stops == 1
    page.locator(".mover").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".mover").nth(1).evaluate("m => m.matches(':focus')")
    page.keyboard.press("ArrowRight")
    assert (
        page.locator(".mover-rows li")
        .nth(1)
        .locator("button")
        .nth(1)
        .evaluate("b => b.matches(':focus')")
    )
