"""Trackers by name, and what is said when one is not there."""

import sys
from pathlib import Path

import pytest
from torch import nn

import sonde
from sonde.sinks.trackers import TRACKERS


def test_an_unknown_name_is_refused_before_anything_happens(tmp_path):
    model = nn.Linear(2, 2)
    with pytest.raises(sonde.SondeError, match=r"no sink called 'comet'. Known are: "):
        sonde.watch(model, dir=tmp_path, sinks=["comet"])
    assert list(tmp_path.iterdir()) == []
    assert not model._forward_hooks


def test_a_sink_by_name_has_the_defaults_of_its_tracker(trained):
    run = trained(["tensorboard"], steps=2)
    assert list(Path(run.path, "tensorboard").glob("*tfevents*"))


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_missing_package_is_one_line_that_names_the_extra(tmp_path, monkeypatch, name):
    package = {"neptune": "neptune_scale"}.get(name, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError) as raised:
        sonde.watch(nn.Linear(2, 2), dir=tmp_path, sinks=[name])
    text = f"{package} is not installed. Install it with: pip install 'sonde[{name}]'"
    assert str(raised.value) == text
    assert list(tmp_path.iterdir()) == []
