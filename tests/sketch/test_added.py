"""Statistics that users add: one definition is enough for every place that shows statistics."""

import logging
import sys

import numpy as np
import pytest

import sonde
from sonde.kernels.reference import sketch
from sonde.sketch import STATISTICS, added, needs_bins, statistic, statistics
from sonde.views import header


@pytest.fixture(autouse=True)
def only_here(monkeypatch):
    """What a test adds is gone after it."""
    before = dict(STATISTICS)
    monkeypatch.setattr(added, "_LOADED", set())
    yield
    statistics._STATISTICS.clear()
    statistics._STATISTICS.update(before)


def crest_factor(sql="{max_abs} / nullif({rms}, 0)", **options):
    @sonde.statistic(sql=sql, **options)
    def crest(sketches):
        return statistic("max_abs")(sketches) / statistic("rms")(sketches)

    return crest


def recorded(tmp_path):
    import torch

    model = torch.nn.Linear(4, 4)
    with sonde.watch(model, every=1, dir=tmp_path, log="output") as watch:
        for _ in range(3):
            model(torch.randn(8, 4))
            watch.step()
    return sonde.open(watch.path)


def test_a_statistic_without_sql_gives_the_same_numbers(tmp_path):
    crest_factor()
    run = recorded(tmp_path)
    by_sql = run.stats("*", stat=["max_abs", "rms", "crest"])
    np.testing.assert_allclose(by_sql["crest"], by_sql["max_abs"] / by_sql["rms"], rtol=1e-12)
    assert not needs_bins("crest")
    crest_factor(sql=None)
    assert needs_bins("crest")
    by_numpy = run.stats("*", stat="crest")["crest"]
    np.testing.assert_allclose(by_numpy, by_sql["crest"], rtol=1e-12)
    assert run.sketch("", kind="output", step=1).stat("crest") == by_numpy[1]


def test_a_run_that_is_open_learns_of_a_new_statistic(tmp_path):
    run = recorded(tmp_path)
    with pytest.raises(sonde.SondeError, match="Unknown statistic `crest`"):
        run.stats("*", stat="crest")
    crest_factor()
    assert (run.stats("*", stat="crest")["crest"] >= 1).all()
    assert len(run.sql("select crest from stats where crest >= 1")) == 3


def test_the_page_is_told_of_it_with_its_label_and_format():
    crest_factor(label="crest factor", format="share")
    found = {known.name: known for known in header._statistics()}["crest"]
    assert (found.label, found.format, found.needs_bins) == ("crest factor", "share", False)


def test_counts_are_whole_numbers(tmp_path):
    @sonde.statistic(sql="{count} - {zeros}", format="count")
    def nonzeros(sketches):
        return statistic("count")(sketches) - statistic("zeros")(sketches)

    values = recorded(tmp_path).stats("*", stat="nonzeros")["nonzeros"]
    assert values.dtype == np.int64
    assert (values == 32).all()


def test_where_there_is_nothing_to_say_is_nan():
    crest_factor()
    assert np.isnan(sketch([]).stat("crest"))
    assert np.isnan(sketch([0.0, 0.0]).stat("crest"))


@pytest.mark.parametrize("name", ["rms", "p50", "step", "Crest", "median", "1st"])
def test_a_name_that_cannot_be_is_refused(name):
    def function(sketches):
        return sketches.counts[:, 0]

    function.__name__ = name
    with pytest.raises(sonde.SondeError, match=f"`{name}`"):
        sonde.statistic()(function)


def test_sql_that_refers_to_nothing_is_refused():
    with pytest.raises(sonde.SondeError, match="refers to 'rmse'"):
        crest_factor(sql="{rmse} / 2")
    with pytest.raises(sonde.SondeError, match="refers to 'rm8'"):
        crest_factor(sql="{rm8} / 2")


def test_sql_that_is_wrong_is_named(tmp_path):
    run = recorded(tmp_path)
    crest_factor(sql="nothing_like_it + 1")
    with pytest.raises(sonde.SondeError, match="The SQL of the statistic `crest` is wrong"):
        run.stats("*", stat="crest")


def test_a_function_that_gives_too_few_numbers_is_an_error_that_says_so():
    @sonde.statistic()
    def few(sketches):
        return np.zeros(3)

    with pytest.raises(ValueError, match="`few` gave an array of shape"):
        sketch([1.0]).stat("few")


def test_files_of_the_environment_define_statistics(tmp_path, monkeypatch, caplog):
    run = recorded(tmp_path)
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(
        "import sonde\n"
        "@sonde.statistic(sql='{max} - {min}')\n"
        "def spread(sketches):\n"
        "    from sonde.sketch import statistic\n"
        "    return statistic('max')(sketches) - statistic('min')(sketches)\n"
    )
    bad.write_text("raise RuntimeError('no')")
    monkeypatch.setenv(added.LOAD, f"{bad}:{good}")
    with caplog.at_level(logging.WARNING):
        found = sonde.open(run.path).stats("*", stat="spread")
    assert (found["spread"] > 0).all()
    assert "bad.py` are left out: RuntimeError('no')" in caplog.text


def test_installed_packages_define_statistics(tmp_path, monkeypatch):
    run = recorded(tmp_path / "runs")
    (tmp_path / "offered.py").write_text(
        "import sonde\n"
        "@sonde.statistic()\n"
        "def doubled(sketches):\n"
        "    return 2.0 * sketches.counts[:, 0]\n"
    )
    info = tmp_path / "offered-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sonde.statistics]\noffered = offered\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(added, "_LOADED", set())  # as in a new process
    found = sonde.open(run.path).stats("*", stat="doubled")
    assert (found["doubled"] == 64).all()
    sys.modules.pop("offered")
