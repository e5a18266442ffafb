"""Panels: what a kymograph shows is what the run holds, and one cursor moves them all."""

import numpy as np
import pytest
from browser_pages import ready, viridis
from playwright.sync_api import expect

import sonde

# The colours of a kymograph: see web/src/core/kymo.ts. Of none, of a density.
FLOOR = 0.08
LEVELS = 253


def classes(density, least, most, scale):
    """Which of 254 colours each cell has."""
    with np.errstate(divide="ignore"):
        if scale in {"log", "exponent"}:
            place = 1 - np.log(most / density) / np.log(max(most / least, 2))
        else:
            place = np.sqrt(density / most)
    place = np.where(density > 0, FLOOR + (1 - FLOOR) * np.clip(place, 0, 1), 0)
    return np.floor(place * LEVELS + 0.5).astype(int)


READ = """(plot) => {
  const canvas = plot.querySelector('[data-kymo]');
  const read = name => +plot.dataset[name];
  const [top, tall, cells, columns] = ['top', 'cellsPx', 'cells', 'columns'].map(read);
  const ratio = canvas.width / canvas.getBoundingClientRect().width;
  const context = canvas.getContext('2d');
  const found = [];
  for (let c = 0; c < columns; c++) {
    const x = Math.floor((c + 0.5) * canvas.width / columns);
    const column = [];
    for (let i = 0; i < cells; i++) {
      const y = Math.floor((top + (cells - 1 - i + 0.5) * tall / cells) * ratio);
      column.push([...context.getImageData(x, y, 1, 1).data].slice(0, 3));
    }
    found.push(column);
  }
  return {
    found, cells, scale: plot.dataset.scale, low: read('low'), high: read('high'),
    most: read('maxDensity'), least: read('minDensity'),
  };
}"""


@pytest.mark.parametrize("scale", ["linear", "exponent"])
@pytest.mark.parametrize("ratio", [1, 2])
def test_pixels_of_a_kymograph_are_the_histograms_of_the_run(
    server, open_page, run_ids, runs, scale, ratio
):
    page = open_page(
        server,
        f"#/explore?run={run_ids['transformer']}&pins=A:blocks.1.mlp.0&scale={scale}&range=all",
        device_scale_factor=ratio,
    )
    plot = page.locator('[data-site-name="blocks.1.mlp.0/output/0"] .kymo-body')
    plot.scroll_into_view_if_needed()
    plot.wait_for()
    ready(page)
    seen = plot.evaluate(READ)
    run = sonde.open(runs / "transformer")
    low, high, cells = seen["low"], seen["high"], seen["cells"]
    steps = range(24)
    table = viridis()
    if scale == "linear":
        edges = np.linspace(low, high, cells + 1)
        counted = [
            run.histogram("blocks.1.mlp.0", kind="output", step=s, edges=edges).counts
            for s in steps
        ]
    else:
        exponents = np.arange(int(np.log2(low)), int(np.log2(high)))
        edges = 2.0 ** np.arange(int(np.log2(low)), int(np.log2(high)) + 1)
        assert len(exponents) == cells
        counted = []
        for s in steps:
            one = run.exponents("blocks.1.mlp.0", kind="output", step=s)
            by_exponent = dict(zip(one.exponents.tolist(), one.counts.tolist(), strict=True))
            counted.append([by_exponent.get(int(n), 0) for n in exponents])
    total = run.sketch("blocks.1.mlp.0", kind="output", step=0).count
    counted = np.array(counted)
    assert counted.sum() == pytest.approx(total * len(steps), rel=1e-6)
    density = counted / total / np.diff(edges)
    assert seen["least"] == pytest.approx(density[density > 0].min(), rel=1e-5)
    assert seen["most"] <= density.max() * (1 + 1e-5)
    wanted = classes(density, seen["least"], seen["most"], scale)
    index = np.floor(np.arange(LEVELS + 1) / LEVELS * 255 + 0.5).astype(int)
    place = {colour: i for i, colour in enumerate(table)}
    for step in steps:
        got = [place[tuple(colour)] for colour in seen["found"][step]]
        # The answer holds densities in float32: at an edge between two colours either is right.
        assert np.abs(np.array(got) - index[wanted[step]]).max() <= 1, f"step {step}"
    assert len(np.unique(wanted)) > 5


@pytest.mark.parametrize("scale", ["auto", "linear", "asinh", "log", "exponent"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_normal_distribution_is_drawn_with_one_mode_at_its_mean(
    made_server, open_page, made_ids, scale, theme
):
    """Brightness rises to the mean and falls from there, whatever the axis."""
    page = open_page(
        made_server, f"#/explore?run={made_ids['normal']}&pins=A:cell&scale={scale}&th={theme}"
    )
    plot = page.locator('[data-site-name="cell/output/0"] .kymo-body')
    seen = plot.evaluate(READ)
    place = {colour: i for i, colour in enumerate(viridis())}
    assert seen["scale"] == ("linear" if scale == "auto" else scale)
    for column in (0, 20, 39):
        bright = np.array([place[tuple(colour)] for colour in seen["found"][column]])
        top = np.flatnonzero(bright == bright.max())
        noise = 30  # 8,192 values: a narrow cell near zero holds about seven
        assert (np.diff(bright[: top[0] + 1]) >= -noise).all(), bright.tolist()
        assert (np.diff(bright[top[-1] :]) <= noise).all(), bright.tolist()
        cells = len(bright)
        if scale in {"log", "exponent"}:
            assert top[0] < cells / 4  # the smallest magnitudes: the mean is 0
        else:
            assert abs(top.mean() - (cells - 1) / 2) <= cells / 10
            assert bright[0] < bright.max() / 2
            assert bright[-1] < bright.max() / 2


def test_steps_that_diverged_leave_the_others_as_they_are(made_server, open_page, made_ids):
    page = open_page(
        made_server, f"#/explore?run={made_ids['diverged']}&pins=A:model.layers.0.gate"
    )
    body = page.locator('[data-site-name="model.layers.0.gate/output/0"]')
    plot = body.locator(".kymo-body")
    seen = plot.evaluate(READ)
    place = {colour: i for i, colour in enumerate(viridis())}
    healthy = np.array([place[tuple(colour)] for colour in seen["found"][10]])
    assert (healthy > 60).sum() > len(healthy) / 2
    expect(body.locator(".kymo-foot")).to_contain_text("6 columns lie mostly outside the axis")


def test_every_kind_has_its_section(server, open_page, run_ids):
    page = open_page(
        server, f"#/explore?run={run_ids['transformer']}&pins=A:head,B:blocks.0%2Fattach%2Fstream"
    )
    kinds = page.eval_on_selector_all(
        '[data-pin="A"] [data-section]', "all => all.map(s => s.dataset.section)"
    )
    assert kinds == [
        *("input", "input_grad", "output", "output_grad"),
        *("param", "param_grad", "update", "optim"),
    ]


def test_an_attached_tensor_has_its_values_and_gradients(server, open_page, run_ids):
    page = open_page(server, f"#/explore?run={run_ids['transformer']}&at=blocks.0")
    page.locator('[data-node][data-label="stream"]').click()
    ready(page)
    kinds = page.eval_on_selector_all(
        "[data-preview] [data-section]", "all => all.map(s => s.dataset.section)"
    )
    assert kinds == ["attach", "attach_grad"]


def test_the_crosshair_moves_in_all_panels(server, open_page, run_ids):
    page = open_page(
        server, f"#/explore?run={run_ids['transformer']}&pins=A:embed,B:head", width=1600
    )
    plots = page.locator(".kymo-plot:visible")
    assert plots.count() >= 3
    box = plots.first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)

    def places():
        return page.evaluate(
            """() => [...document.querySelector('#sonde').shadowRoot
                .querySelectorAll('.kymo-plot .hover-line, .over .hover-line')]
                .map(l => [l.style.display, l.style.left])"""
        )

    first = places()
    assert len({place for _, place in first}) == 1, first
    assert {shown for shown, _ in first} == {"block"}
    shown = page.locator(".kymo-numbers").evaluate_all("all => all.map(n => n.dataset.step)")
    assert len(set(shown)) == 1
    assert page.locator("[data-cursor-step]").text_content() == shown[0]
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 40)
    assert places() != first
    assert len({place for _, place in places()}) == 1
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.wait_for_function("() => location.hash.includes('step=')")
    page.mouse.move(5, 5)
    lines = page.locator(".kymo-plot .cursor-line").evaluate_all(
        "all => all.map(l => l.style.left)"
    )
    assert len(set(lines)) == 1


def test_the_numbers_at_the_cursor_are_those_of_the_run(server, open_page, run_ids, runs):
    page = open_page(server, f"#/explore?run={run_ids['transformer']}&pins=A:head&step=7")
    numbers = page.locator('[data-site-name="head/output/0"] .kymo-numbers')
    expect(numbers).to_have_attribute("data-step", "7")
    sketch = sonde.open(runs / "transformer").sketch("head", kind="output", step=7)
    text = numbers.inner_text().replace("\u2212", "-").split()
    told = dict(zip(text[::2], map(float, text[1::2]), strict=True))
    assert told["min"] == pytest.approx(sketch.min, rel=5e-3)
    assert told["max"] == pytest.approx(sketch.max, rel=5e-3)


def test_values_that_are_not_finite_have_their_strip(server, open_page, run_ids):
    page = open_page(server, f"#/explore?run={run_ids['cnn']}&pins=A:stem")
    plot = page.locator('[data-site-name="stem/output/0"] .kymo-body')
    strip = plot.evaluate(
        """(plot) => {
          const canvas = plot.querySelector('[data-kymo]');
          const row = canvas.getContext('2d').getImageData(0, 2, canvas.width, 1).data;
          const isBad = (_, x) => row[4 * x] === 255 && row[4 * x + 1] === 0;
          return Array.from({length: canvas.width}, isBad);
        }"""
    )
    half = len(strip) * 2 // 3
    assert not any(strip[: half - 2])
    assert any(strip[half + 2 :])


def test_the_scale_changes_for_all_panels_at_once(server, open_page, run_ids):
    page = open_page(server, f"#/explore?run={run_ids['transformer']}&pins=A:head")
    cells = page.locator('[data-site-name="head/output/0"] .kymo-body')
    before = cells.get_attribute("data-low")
    for _ in range(4):
        page.keyboard.press("l")
    page.wait_for_function("() => location.hash.includes('scale=exponent')")
    ready(page)
    assert cells.get_attribute("data-low") != before
    assert float(cells.get_attribute("data-low")) > 0


def test_reloading_restores_everything_from_the_address(server, open_page, run_ids):
    page = open_page(server, f"#/explore?run={run_ids['transformer']}&at=blocks.0")
    page.locator('[data-node][data-label="attn"]').click()
    page.keyboard.press("p")
    page.locator('[data-node][data-label="norm2"]').click()
    page.keyboard.press("l")
    page.keyboard.press("2")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("w")
    page.keyboard.press("t")
    page.wait_for_function(
        "() => location.hash.includes('th=dark') && location.hash.includes('x=')"
    )
    ready(page)

    def state():
        root = page.locator("#sonde")
        return {
            "theme": root.get_attribute("data-theme"),
            "crumbs": page.locator(".crumbs .crumb").all_inner_texts(),
            "pins": page.locator("[data-pin] .panel-head").all_inner_texts(),
            "preview": page.locator("[data-preview]").inner_text(),
            "selected": page.locator(".node.selected").get_attribute("data-label"),
            "step": page.locator("[data-cursor-step]").text_content(),
            "kind": page.locator(".toolbar select").first.input_value(),
            "window": page.locator(".chip.window").inner_text(),
            "scale": page.locator(".segments").first.locator('[aria-pressed="true"]').inner_text(),
        }

    before, address = state(), page.url
    page.reload()
    ready(page)
    assert page.url == address
    assert state() == before
    assert before["theme"] == "dark"
    assert before["selected"] == "norm2"
    assert before["step"] == "20"


def test_panels_that_are_not_on_screen_ask_nothing(server, open_page, run_ids):
    page = open_page(
        server,
        f"#/explore?run={run_ids['transformer']}&pins=A:head,B:embed,C:norm,D:blocks.0.attn.qkv",
        height=500,
    )
    asked = [url for url in page.seen.requests if "/api/kymograph" in url]
    there = page.locator(".kymo").count()
    assert 0 < len(asked) < there / 2
    page.locator(".kymo").last.scroll_into_view_if_needed()
    page.locator(".kymo").last.locator("[data-kymo]").wait_for()
