"""Tables and files of the page: what is saved and copied holds the numbers that are shown."""

import csv
import io
import re
import struct
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from browser_pages import ids, ready, serve
from made_runs import breaking, moe, write
from playwright.sync_api import expect

import sonde

mpl.use("Agg")
SITE = "model.layers.1.gate/param/weight"


@pytest.fixture(scope="module")
def figure_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    write(folder / "one", moe(2, 2), size=breaking)
    write(folder / "two", moe(2, 2))
    return folder


@pytest.fixture(scope="module")
def figure_server(figure_folder):
    with serve(figure_folder) as made:
        yield made


@pytest.fixture(scope="module")
def figure_ids(figure_server):
    return ids(figure_server)


def choose(page, menu, item):
    menu.get_by_role("button", name="Copy or save this chart").first.click()
    page.locator(".menu-items:popover-open").get_by_role("button", name=item).click()


def saved(page, menu, item):
    with page.expect_download() as download:
        choose(page, menu, item)
    return download.value.path().read_bytes()


def charts(one, two):
    """Every chart: where it stands, and what holds its menu."""
    return {
        "heatmap": (f"#/layers?run={one}&kind=param", ".heat-panel"),
        "kymograph": (f"#/explore?run={one}&pins=A:model.layers.1.gate", "[data-pin] .kymo"),
        "exponents": (f"#/layers?run={one}&kind=param&site={SITE}", ".drawer"),
        "timeline": (f"#/overview?run={one}", ".timeline"),
        "graph": (f"#/explore?run={one}", ".graph-space"),
        "comparison": (f"#/compare?run={one},{two}&kind=param", '[data-compared="difference"]'),
        "histograms": (f"#/compare?run={one},{two}&kind=param&site={SITE}", ".drawer"),
    }


CHARTS = tuple(charts("", ""))


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_is_saved_as_a_picture(figure_server, open_page, figure_ids, name):
    place, holder = charts(figure_ids["one"], figure_ids["two"])[name]
    page = open_page(figure_server, place)
    menu = page.locator(holder).first
    svg = ET.fromstring(saved(page, menu, "Save SVG"))  # made by the page under test
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    drawn = [e.tag.rpartition("}")[2] for e in svg.iter()]
    assert "text" in drawn
    assert {"path", "image", "rect"} & set(drawn)
    png = saved(page, menu, "Save PNG")
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    wide, high = struct.unpack(">II", png[16:24])
    assert (wide, high) == (2 * int(svg.get("width")), 2 * int(svg.get("height")))


@pytest.mark.parametrize("name", CHARTS)
def test_the_copied_call_draws_the_same_figure(
    figure_server, open_page, figure_ids, figure_folder, name, monkeypatch
):
    place, holder = charts(figure_ids["one"], figure_ids["two"])[name]
    page = open_page(figure_server, place, permissions=["clipboard-read", "clipboard-write"])
    choose(page, page.locator(holder).first, "Copy Python")
    expect(page.get_by_text("Copied the Python call")).to_be_visible()
    text = page.evaluate("navigator.clipboard.readText()")
    assert re.search(r"run\.plot\.\w+\(", text)
    found = {}
    exec(text.replace("run.plot", "figure = run.plot"), found)
    assert found["run"].path == str(figure_folder / "one")
    assert found["figure"].axes
    mpl.pyplot.close("all")


def test_the_saved_table_of_a_heatmap_has_its_numbers(figure_server, open_page, figure_ids):
    page = open_page(figure_server, f"#/layers?run={figure_ids['one']}&kind=param")
    text = saved(page, page.locator(".heat-panel"), "Save CSV").decode()
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0] == ["row", *map(str, range(12))]
    by_name = {row[0]: row[1:] for row in rows[1:]}
    run = sonde.open(figure_server.folder / "one")
    known = run.stats("lm_head.weight", "param", stat="rms", frame="arrow")["rms"].to_pylist()
    assert np.array(by_name["lm_head weight"], float) == pytest.approx(known, rel=1e-6)
    assert by_name["model.layers.1.gate weight"][8] == "nonfinite"


def column(page, i):
    return page.locator(f".layer-rows tbody tr > :nth-child({i})").all_inner_texts()


def test_layers_are_a_table_that_is_sorted_and_saved(figure_server, open_page, figure_ids):
    page = open_page(figure_server, f"#/layers?run={figure_ids['one']}&kind=param")
    page.get_by_role("button", name="table", exact=True).click()
    ready(page)
    expect(page).to_have_url(re.compile("[?&]table=1(&|$)"))
    rms = page.get_by_role("columnheader", name="rms")
    rms.get_by_role("button").click()
    expect(rms).to_have_attribute("aria-sort", "descending")
    shown = [float(x.replace("−", "-")) for x in column(page, 2)]
    assert shown == sorted(shown, reverse=True)
    page.get_by_role("columnheader", name="not finite since").get_by_role("button").click()
    expect(page.locator(".layer-rows tbody tr").first.locator("> :nth-child(6)")).to_have_text("8")
    assert column(page, 6)[:2] == ["8", "8"]
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert len(rows) == len(shown)
    assert rows[0]["first_nonfinite_step"] == "8"
    page.get_by_role("combobox", name="Format").select_option("float16")
    ready(page)
    page.locator(".layer-rows tbody tr").first.click()
    expect(page.locator("[data-drawer]")).to_be_visible()


def test_underflow_of_the_whole_model_is_a_heatmap(figure_server, open_page, figure_ids):
    page = open_page(figure_server, f"#/layers?run={figure_ids['two']}&kind=param")
    page.get_by_role("combobox", name="Statistic").select_option(label="underflow in e4m3")
    ready(page)
    expect(page.locator(".legend-title")).to_have_text("underflow in e4m3 of param")
    assert page.locator(".ramp").inner_text().count("%") >= 2


@pytest.fixture(scope="module")
def noted_server(tmp_path_factory):
    """Runs with settings, tags, notes, epochs, and a note at a step."""
    from sonde.kernels.reference import sketch
    from sonde.record import Event, NumberBatch, Site, SiteInfo, SketchBatch
    from sonde.store import Writer

    folder = tmp_path_factory.mktemp("noted")
    for name, lr in (("alpha", 0.1), ("beta", 0.02), ("gamma", 0.3)):
        user = {"lr": lr, "depth": 4, "tags": ["sweep", name], "note": f"the {name} run"}
        with Writer(folder / name, compact=False, config={"user": user}) as writer:
            writer.sites([SiteInfo(0, Site("a", "output"), "float32", (4,), "Linear")])
            for step in range(0, 40, 2):
                rows = sketch(np.full(4, lr)).columns()
                writer.sketches(SketchBatch(step, "train", np.zeros(1, np.int32), rows))
                values = np.array([1 / (1 + step), step / 10])
                writer.numbers(NumberBatch(step, "train", ["loss", "epoch"], [None, None], values))
            writer.event(Event("note", "lr halved", step=20))
    with serve(folder) as made:
        yield made


def test_runs_are_filtered_and_sorted_by_their_settings(noted_server, open_page):
    page = open_page(noted_server, "#/runs")
    heads = page.get_by_role("columnheader").all_inner_texts()
    assert "lr" in heads
    assert "depth" not in heads  # the same in all
    names = page.locator(".run-name")
    page.get_by_role("columnheader", name="lr").get_by_role("button").click()
    expect(names).to_have_text(["gamma", "alpha", "beta"])
    page.get_by_role("columnheader", name="lr").get_by_role("button").click()
    expect(names).to_have_text(["beta", "alpha", "gamma"])
    expect(page.locator('[data-run="beta"]')).to_contain_text("the beta run")
    expect(page.locator('[data-run="beta"] .tag').first).to_have_text("sweep")
    page.get_by_role("searchbox", name="Filter runs").fill("lr=0.3")
    assert names.all_inner_texts() == ["gamma"]
    page.get_by_role("searchbox", name="Filter runs").fill("nothing like it")
    expect(page.get_by_text("No run matches")).to_be_visible()


def test_the_time_axis_is_that_of_a_scalar_or_of_the_clock_on_the_wall(noted_server, open_page):
    run = ids(noted_server)["alpha"]
    page = open_page(noted_server, f"#/overview?run={run}&step=10")
    axis = page.get_by_role("combobox", name="Axis")
    axis.select_option("epoch")
    ready(page)
    expect(page.locator("[data-clock]")).to_have_text("1")
    page.wait_for_function("() => location.hash.includes('axis=epoch')")
    svg = saved(page, page.locator(".heat-panel"), "Save SVG").decode()
    assert ">3<" in svg  # the fourth epoch, in place of step 30
    assert ">30<" not in svg
    axis.select_option("time")
    ready(page)
    expect(page.locator("[data-clock]")).to_contain_text("s")


def test_a_note_is_a_flag_at_its_step(noted_server, open_page):
    run = ids(noted_server)["alpha"]
    page = open_page(noted_server, f"#/layers?run={run}&step=4")
    flag = page.locator(".timeline .flag")
    expect(flag).to_have_attribute("title", "lr halved at step 20")
    page.keyboard.press(".")
    expect(page.locator("[data-cursor-step]")).to_have_text("20")


def test_a_logframe_is_shown_as_a_run_is(figure_folder, tmp_path, start, open_page):
    with sonde.open(figure_folder / "two") as run:
        sonde.logframe.write(run.to_logframe(), tmp_path / "numerics.parquet")
        expected = run.stats("lm_head.weight", "param", stat="rms", frame="arrow")[
            "rms"
        ].to_pylist()
    server = start(tmp_path / "numerics.parquet")
    (run_id,) = ids(server).values()
    page = open_page(server, f"#/layers?run={run_id}&kind=param")
    text = saved(page, page.locator(".heat-panel"), "Save CSV").decode()
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(text))}
    assert np.array(rows["lm_head weight"], float) == pytest.approx(expected, rel=1e-6)
    page.get_by_role("combobox", name="Scalar in the timeline").select_option(
        "underflow_rate/Weights"
    )
    expect(page.locator(".readout")).to_contain_text("train")
