"""The graph: what is drawn, how one moves in it, and what gets a panel."""

import re

import pytest
from browser_pages import ready
from playwright.sync_api import expect


def node(page, label):
    return page.locator(f'[data-node][data-label="{label}"]')


def labels(page):
    return set(page.eval_on_selector_all("[data-node]", "all => all.map(n => n.dataset.label)"))


@pytest.fixture
def explore(server, open_page, run_ids):
    def opened(run, rest="", **context):
        return open_page(server, f"#/explore?run={run_ids[run]}{rest}", **context)

    return opened


def test_the_transformer_is_drawn_with_its_repeats_folded(explore):
    page = explore("transformer")
    assert labels(page) == {"input 0", "embed", "blocks[0…2]", "norm", "head", "output 0"}
    expect(node(page, "blocks[0…2]")).to_contain_text("×3")
    edges = page.eval_on_selector_all("[data-edge]", "all => all.length")
    assert edges == 5


def test_the_network_for_images_is_a_chain(explore):
    page = explore("cnn")
    assert labels(page) == {"input 0", "stem", "act", "pool", "head", "output 0"}
    tops = page.evaluate(
        """() => Object.fromEntries([...document.querySelector('#sonde').shadowRoot
            .querySelectorAll('[data-node]')]
            .map(n => [n.dataset.label, n.getBoundingClientRect().top]))"""
    )
    order = ["input 0", "stem", "act", "pool", "head", "output 0"]
    assert [tops[n] for n in order] == sorted(tops.values())


def test_clicking_into_a_block_and_back_by_breadcrumb(explore):
    page = explore("transformer")
    node(page, "blocks[0…2]").locator('[data-button="open"]').click()
    ready(page)
    expect(node(page, "attn")).to_be_visible()
    assert {"norm1", "attn", "stream", "norm2", "mlp"} <= labels(page)
    node(page, "attn").dblclick()
    ready(page)
    expect(node(page, "qkv")).to_be_visible()
    crumbs = page.locator(".crumbs .crumb")
    assert crumbs.all_inner_texts() == ["Transformer", "blocks[0]", "attn"]
    crumbs.nth(1).click()
    ready(page)
    expect(node(page, "norm2")).to_be_visible()
    crumbs.nth(0).click()
    ready(page)
    expect(node(page, "embed")).to_be_visible()
    page.go_back()
    ready(page)
    expect(node(page, "norm2")).to_be_visible()


def test_instances_of_a_block_are_stepped_through(explore):
    page = explore("transformer", "&at=blocks.0")
    page.get_by_role("button", name="Next instance").click()
    ready(page)
    expect(page.locator(".crumbs .crumb")).to_have_text(["Transformer", "blocks[1]"])
    expect(page).to_have_url(re.compile(re.escape("at=blocks.1")))


def test_repeats_are_unfolded_and_folded(explore):
    page = explore("transformer")
    node(page, "blocks[0…2]").locator('[data-button="unfold"]').click()
    expect(node(page, "blocks[1]")).to_be_visible()
    assert {"blocks[0]", "blocks[1]", "blocks[2]"} <= labels(page)
    page.get_by_role("button", name="1 unfolded").click()
    ready(page)
    expect(node(page, "blocks[0…2]")).to_be_visible()
    page.keyboard.press("o")
    ready(page)
    expect(node(page, "blocks[1]")).to_be_visible()


def test_the_tip_tells_shapes_dtypes_and_what_the_module_says_of_itself(explore):
    page = explore("transformer")
    node(page, "embed").hover()
    tip = page.locator(".tip")
    expect(tip).to_contain_text("4×8 int64")
    expect(tip).to_contain_text("4×8×16 float32")
    expect(tip).to_contain_text("Embedding")
    expect(tip).to_contain_text("512")  # parameters: 32 words of 16
    page = explore("cnn")
    node(page, "stem").hover()
    tip = page.locator(".tip")
    expect(tip).to_contain_text("8×3×8×8 float32")
    expect(tip).to_contain_text("8×8×8×8 float32")
    expect(tip).to_contain_text("kernel_size")
    expect(tip).to_contain_text("(3, 3)")


def test_an_arrow_tells_the_shape_of_what_flows(explore):
    page = explore("cnn")
    page.locator('[data-edge="stem act"] .edge-hit').hover(force=True)
    expect(page.locator(".tip")).to_contain_text("8×8×8×8")


def test_modules_are_pinned_by_click_by_key_and_by_drag(explore):
    page = explore("transformer")
    node(page, "embed").hover()
    node(page, "embed").locator('[data-button="pin"]').click()
    expect(page.locator('[data-pin="A"]')).to_contain_text("embed")
    node(page, "norm").click()
    expect(page.locator("[data-preview]")).to_contain_text("norm")
    page.keyboard.press("p")
    expect(page.locator('[data-pin="B"]')).to_contain_text("norm")
    box, deck = node(page, "head").bounding_box(), page.locator("[data-deck]").bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 12)
    page.mouse.down()
    page.mouse.move(deck["x"] + 60, deck["y"] + 80, steps=8)
    expect(page.locator(".dropzone")).to_be_visible()
    page.mouse.move(deck["x"] + deck["width"] / 2, deck["y"] + deck["height"] - 30, steps=4)
    page.mouse.up()
    expect(page.locator('[data-pin="C"]')).to_contain_text("head")
    ready(page)
    for letter, label in (("A", "embed"), ("B", "norm"), ("C", "head")):
        chip = page.locator(f'[data-pin="{letter}"] .letter')
        mark = node(page, label).locator(".node-letter")
        assert mark.text_content() == letter
        colour = chip.evaluate("e => getComputedStyle(e).backgroundColor")
        assert mark.locator("rect").evaluate("e => getComputedStyle(e).fill") == colour
    expect(page).to_have_url(re.compile(re.escape("pins=A:embed,B:norm,C:head")))


def test_panels_are_moved_closed_and_lead_to_their_parent(explore):
    page = explore("transformer", "&pins=A:embed,B:blocks.0.attn.qkv")
    letters = page.locator("[data-pin] .letter")
    expect(letters).to_have_text(["A", "B"])
    page.get_by_role("button", name="Move panel A on").click()
    expect(letters).to_have_text(["B", "A"])
    page.locator('[data-pin="B"]').get_by_role("button", name="Show it in the graph").click()
    ready(page)
    expect(node(page, "qkv")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="Close panel A").click()
    expect(letters).to_have_text(["B"])
    page.keyboard.press("x")
    expect(page.locator("[data-pin]")).to_have_count(0)


def test_boxes_are_tinted_by_the_chosen_statistic_at_the_cursor(explore, server, run_ids):
    page = explore("transformer", "&kind=output&stat=rms&step=3")
    tint = page.request.get(
        f"{server.base}api/tint?run={run_ids['transformer']}&kind=output&stat=rms&step=3"
    )
    assert tint.ok
    first = node(page, "embed").locator(".node-value").text_content()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('step=4')")
    ready(page)
    assert node(page, "embed").locator("[data-tint]").count() == 1
    assert first


def test_the_keyboard_alone_goes_everywhere(explore):
    page = explore("transformer")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(node(page, "embed")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    ready(page)
    expect(node(page, "attn")).to_be_visible()
    page.keyboard.press("Backspace")
    ready(page)
    expect(node(page, "embed")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("*.qkv")
    expect(page.get_by_role("dialog").get_by_role("option")).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    ready(page)
    expect(node(page, "qkv")).to_have_attribute("aria-selected", "true")
    expect(page).to_have_url(re.compile(re.escape("at=blocks.1.attn")))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("l")
    ready(page)
    expect(page.locator("[data-heat]")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("r")
    ready(page)
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
