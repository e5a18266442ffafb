"""Names of runs: what may be one, and what a name that is taken says."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import sonde


@pytest.fixture
def model():
    return nn.Linear(2, 1)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../x",
            "..",
            ".",
            "",
            " ",
            "a/b",
            "a\\b",
            "/absolute",
            "\\\\host\\share",
            "C:x",
            "c:\\x",
        ),
        *(".hidden", "a\nb", "a\x00b", "a\x7fb", "a\u2028b", "\udcff", "x" * 256, "é" * 128),
        *("latest", Path("x"), 3),
    ],
)
def test_a_name_that_is_not_one_plain_folder_is_refused(model, tmp_path, name):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(sonde.SondeError, match="`name`"):
        sonde.watch(model, dir=tmp_path / "runs", name=name)
    assert sorted(tmp_path.rglob("*")) == before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_name_with_spaces_letters_and_signs_is_fine(model, tmp_path):
    with sonde.watch(model, dir=tmp_path, name="größe 2, lr=1e-3 (two)") as watch:
        assert watch.path == tmp_path / "größe 2, lr=1e-3 (two)"


def test_a_name_that_begins_with_a_tilde_stays_in_the_folder(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with sonde.watch(model, dir=".", name="~root") as watch:
        assert watch.path == tmp_path / "~root"


def test_resuming_a_name_outside_of_the_folder_is_refused(model, tmp_path):
    with sonde.watch(model, dir=tmp_path, name="here"):
        pass
    with pytest.raises(sonde.SondeError, match="`name`"):
        sonde.watch(model, dir=tmp_path / "runs", name="../here", resume=True)


def test_latest_is_a_name_to_resume(model, tmp_path):
    with sonde.watch(model, dir=tmp_path, name="here"):
        pass
    with sonde.watch(model, dir=tmp_path, name="latest", resume=True, step=0) as watch:
        assert watch.path == tmp_path / "here"


def test_a_reused_name_suggests_arguments_that_watch_takes(model, tmp_path):
    with sonde.watch(model, dir=tmp_path, name="twice"):
        pass
    with pytest.raises(sonde.RunError, match=r"another `name`.*`resume=True`") as caught:
        sonde.watch(model, dir=tmp_path, name="twice")
    assert "resume_from_step" not in str(caught.value)
    with sonde.watch(model, dir=tmp_path, name="twice", resume=True, step=0):
        pass


def test_the_readme_says_how_to_switch_everything_off():
    readme = Path(__file__).parents[2] / "README.md"
    assert "SONDE=off" in readme.read_text()


def test_a_folder_below_home_may_be_written_with_a_tilde(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    with sonde.watch(model, dir="~/runs", name="a") as watch:
        assert watch.path == tmp_path / "runs" / "a"
        model(torch.ones(1, 2))
