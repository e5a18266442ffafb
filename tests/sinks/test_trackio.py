"""Trackio: its database has what the run has."""

import numpy as np
import pytest

import sonde
from sonde.sinks import Trackio

trackio = pytest.importorskip("trackio", reason="the extra `trackio` is not installed")

GROUPS = {"output": "activations", "param": "parameters", "param_grad": "gradients"}


def key(site, stat):
    return f"{GROUPS[site.kind]}/{site.path or '[root module]'}/{stat}"


@pytest.fixture
def active(tmp_path, monkeypatch):
    from trackio import sqlite_storage, utils

    for module in (trackio, sqlite_storage, utils):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio", raising=False)
    return trackio.init(project="tests", name="one", embed=False)


def test_its_database_has_what_the_run_has(trained, told, asked, active):
    from trackio.sqlite_storage import SQLiteStorage

    run = trained([Trackio(timeout_s=60.0, **asked)], close_timeout_s=60.0)
    trackio.finish()
    by_step = {}
    for row in SQLiteStorage.get_logs("tests", "one"):
        by_step.setdefault(row["step"], {}).update(row)
    expected = told(run, key)
    assert len(expected.numbers) >= 50 * 4
    for name, values in expected.numbers.items():
        ours = [by_step[step][name] for step in values]
        np.testing.assert_array_equal(np.array(ours, float), list(values.values()))
    losses = [by_step[step]["sonde/loss"] for step in range(100)]
    assert losses == list(expected.scalars["loss"].values())
    theirs = by_step[9]["activations/aside"]
    ours = run.sketch("aside", kind="output", step=9).histogram(64)
    assert theirs["bins"] == ours.edges.tolist()
    assert theirs["values"] == pytest.approx(ours.counts.tolist())


def test_no_active_run_is_refused(tmp_path, trained):
    with pytest.raises(sonde.SondeError, match="There is no active Trackio run"):
        trained(["trackio"], dir=tmp_path / "none")
