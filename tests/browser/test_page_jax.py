"""A run of JAX on the page, alone and beside its twin of PyTorch."""

import sys
from pathlib import Path

import pytest
from browser_pages import ids, ready, serve
from playwright.sync_api import expect

sys.path.append(str(Path(__file__).parents[1] / "capture_jax"))


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    from twins import in_jax, in_torch

    folder = tmp_path_factory.mktemp("twins")
    in_torch(folder)
    in_jax(folder)
    made = serve(folder)
    yield made
    made.stop()


def test_the_compare_page_has_a_run_of_pytorch_and_its_twin_of_jax(twins, open_page):
    found = ids(twins)
    page = open_page(twins, f"#/compare?run={found['torch']},{found['jax']}")
    ready(page)
    expect(page.locator("[data-verdict]")).to_have_attribute("data-verdict", "alike")
    expect(page.locator("[data-farthest]")).to_have_count(0)
    expect(page.locator("[data-compared] .heat-plot canvas")).to_have_count(3)
    expect(page.locator('[data-compared="difference"]')).to_have_count(1)


def test_a_run_of_jax_has_its_graph_its_heatmap_and_its_rows(twins, open_page):
    run = ids(twins)["jax"]
    for page in ("explore", "overview", "layers"):
        shown = open_page(twins, f"#/{page}?run={run}")
        ready(shown)
        for path in ("embed", "norm", "up", "down"):
            expect(shown.get_by_text(path, exact=True).first).to_be_attached()
