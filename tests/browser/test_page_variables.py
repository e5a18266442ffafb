"""Traced variables in their panel: the heatmap is the tensor at the cursor, with its source."""

import inspect
import re

import numpy as np
import pytest
import torch
from browser_pages import assert_accessible, ids, ready, serve, viridis
from playwright.sync_api import expect
from torch import nn

import sonde

STEPS = 8
CHANGED = 4
NONFINITE, HATCH_LIGHT, HATCH_DARK = (255, 0, 200), (92, 0, 72), (255, 255, 255)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("grid", torch.linspace(1, 3, 24).reshape(2, 3, 4))
        self.large = nn.Parameter(torch.zeros(600, 700))

    def forward(self, x):
        table = self.grid * 1
        mode = {"<b>warm": 1}  # noqa: F841  # is traced
        spread = self.large.detach() + 1
        spread[599, 699] = 9.0
        return self.helper(x) + self.helper(x + 1) + table.nan_to_num().sum() + spread.sum() * 0

    def helper(self, x):
        twice = x * 2
        return twice + self.large.sum()


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x).sum()


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A run whose `table` changes once, in the middle, to numbers of all sizes and one that is
    none."""
    folder = tmp_path_factory.mktemp("traced")
    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    paths = [f"inner.{name}" for name in ("forward.table", "forward.spread", "helper.twice")]
    with (
        sonde.watch(model, optimizer, dir=folder, name="traced", every=1) as watch,
        sonde.trace(model, [*paths, "inner.forward.mode"]),
    ):
        for step in range(STEPS):
            if step == CHANGED:
                model.inner.grid[0] = torch.logspace(-3, 3, 12).reshape(3, 4)
                model.inner.grid[0, 1, 2] = torch.nan
            loss = model(torch.full((2, 3), float(step)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)
    return folder


@pytest.fixture(scope="module")
def traced_server(traced):
    with serve(traced) as made:
        yield made


READ = """(canvas) => {
  const [rows, columns] = [+canvas.dataset.rows, +canvas.dataset.columns];
  const context = canvas.getContext('2d');
  const at = (place, n, size) => Math.floor((place + 0.5) * size / n);
  return Array.from({length: rows}, (_, r) => Array.from({length: columns}, (_, c) => {
    const [x, y] = [at(c, columns, canvas.width), at(r, rows, canvas.height)];
    return [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
  }));
}"""


def place(values, *, is_log):
    """Which of the 256 colours each value has, on a scale from the smallest to the largest."""
    x = np.log2(values) if is_log else values
    t = (x - np.nanmin(x)) / (np.nanmax(x) - np.nanmin(x))
    return np.floor(np.floor(t * 253 + 0.5) / 253 * 255 + 0.5)


def address(server, step, *, more=""):
    return f"#/explore?run={ids(server)['traced']}&pins=A:inner&step={step}{more}"


def of(page, name):
    found = page.locator(f'[data-variable="inner/local/{name}"]')
    found.scroll_into_view_if_needed()
    ready(page)
    return found


def colours_are(page, values, *, is_log):
    found = page.evaluate(READ, of(page, "forward.table").locator("[data-matrix]").element_handle())
    assert np.shape(found) == (*values.shape, 3)
    table = {colour: i for i, colour in enumerate(viridis())}
    wanted = place(values.astype(np.float64), is_log=is_log)
    for at in np.ndindex(values.shape):
        colour = tuple(found[at[0]][at[1]])
        if np.isnan(values[at]):
            assert colour in {NONFINITE, HATCH_LIGHT, HATCH_DARK}, at
        else:
            assert abs(table[colour] - wanted[at]) <= 1, at


@pytest.mark.parametrize("ratio", [1, 2])
def test_pixels_of_the_heatmap_are_the_values_at_the_cursor(
    traced, traced_server, open_page, ratio
):
    page = open_page(
        traced_server, address(traced_server, CHANGED - 1), device_scale_factor=ratio, height=1400
    )
    table = of(page, "forward.table")
    run = sonde.open(traced / "traced")
    kept = run.trace("inner.forward.table")
    assert kept.iterations == [0, CHANGED]
    before, after = kept.values
    expect(table).to_have_attribute("data-step", "0")
    expect(table).to_contain_text(f"kept at step 0, the last one up to step {CHANGED - 1}")
    expect(table).to_contain_text("float32 2×3×4")
    colours_are(page, before[0], is_log=False)
    page.keyboard.press("ArrowRight")  # the cursor goes on to where it has changed
    expect(table).to_have_attribute("data-step", str(CHANGED))
    ready(page)
    colours_are(page, after[0], is_log=True)
    assert np.isnan(after[0]).sum() == 1
    expect(table).to_contain_text("1 of 12 not finite")
    table.get_by_role("button", name="Next matrix").click()
    expect(table).to_contain_text("[1, :, :]")
    ready(page)
    colours_are(page, after[1], is_log=False)
    table.get_by_role("button", name="Previous kept value").click()
    expect(table).to_have_attribute("data-step", "0")
    expect(page).to_have_url(re.compile(re.escape("step=0")))


def test_the_line_that_gave_the_value_stands_below(traced_server, open_page):
    page = open_page(traced_server, address(traced_server, 0), height=1400)
    text, first = inspect.getsourcelines(Inner.forward)
    (number,) = [n for n, line in enumerate(text, first) if "table = " in line]
    here = of(page, "forward.table").locator(".source .here")
    expect(here).to_have_attribute("data-line", str(number))
    expect(here).to_contain_text("table = self.grid * 1")
    expect(here).to_contain_text(f"▸ {number}")
    around = of(page, "forward.table").locator(".source code")
    assert around.count() == 4, "two lines before it are one: the method begins there"
    expect(around.first).to_contain_text("def forward(self, x):")


def test_a_large_tensor_is_pooled_and_its_one_spike_is_seen(traced_server, open_page):
    page = open_page(traced_server, address(traced_server, 0), height=1400)
    spread = of(page, "forward.spread")
    expect(spread).to_contain_text("each cell = 3×3 elements, the one farthest from zero")
    canvas = spread.locator("[data-matrix]")
    assert (canvas.get_attribute("data-rows"), canvas.get_attribute("data-columns")) == (
        "200",
        "234",
    )
    corner = page.evaluate(
        """c => [...c.getContext('2d').getImageData(c.width - 1, c.height - 1, 1, 1).data]""",
        canvas.element_handle(),
    )
    assert tuple(corner[:3]) == viridis()[255]


def test_what_is_no_tensor_is_a_text_with_its_line(traced_server, open_page):
    page = open_page(traced_server, address(traced_server, 3), height=1400)
    assert page.locator(".plain-name").all_inner_texts() == ["forward.mode"]
    mode = of(page, "forward.mode")
    expect(mode.locator(".variable-text")).to_have_text("{'<b>warm': 1}")
    expect(mode.locator(".source .here")).to_contain_text("mode = ")


def test_calls_of_a_method_that_runs_twice_are_told_apart(traced_server, open_page):
    page = open_page(traced_server, address(traced_server, 3), height=1400)
    names = page.locator('[data-section="local"] .kymo-name').all_inner_texts()
    assert {"helper.twice", "helper.twice #1"} <= set(names)


def test_a_module_with_variables_is_pinned_from_the_graph_and_read_by_keys(
    traced_server, open_page
):
    page = open_page(traced_server, f"#/explore?run={ids(traced_server)['traced']}", height=1400)
    page.locator('[data-node][data-label="inner"]').click()
    page.keyboard.press("p")
    page.wait_for_selector("[data-pin=A] [data-section=local]")
    table = of(page, "forward.table")
    plot = table.get_by_role("application")
    plot.focus()
    address_before = page.url
    page.keyboard.press("ArrowRight")  # to the first cell
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".status-text")).to_contain_text("[0, 1, 2] · value NaN")
    expect(table.locator(".cell-mark")).to_be_visible()
    assert page.url == address_before, "arrows move from cell to cell here, not from step to step"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_legible_in_light_and_dark(traced_server, open_page, scheme):
    page = open_page(
        traced_server,
        address(traced_server, CHANGED),
        color_scheme=scheme,
        bypass_csp=True,
        height=1400,
    )
    canvas = of(page, "forward.table").locator("[data-matrix]")
    seen = page.evaluate(
        """c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
          const found = new Set();
          for (let i = 0; i < d.length; i += 4) found.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
          return [...found]; }""",
        canvas.element_handle(),
    )
    seen = {tuple(map(int, colour.split(","))) for colour in seen}
    assert NONFINITE in seen
    assert (HATCH_DARK if scheme == "dark" else HATCH_LIGHT) in seen
    assert_accessible(page)
