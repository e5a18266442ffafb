"""The callback for a Learner of fastai, where that is installed: it brings many packages along."""

import pytest
import torch
from torch import nn

import sonde

learner = pytest.importorskip("fastai.learner", reason="fastai is not in the dev group")

from fastai.callback.training import GradientAccumulation  # noqa: E402  # after the skip
from fastai.data.core import DataLoaders  # noqa: E402

from sonde.integrations.fastai import SondeCallback  # noqa: E402


@pytest.fixture
def learn(tmp_path):
    """A Learner of 12 batches per epoch, and 2 for validation."""
    torch.manual_seed(0)
    rows = [(torch.randn(6), torch.randn(1)) for _ in range(28)]
    parts = [torch.utils.data.DataLoader(part, batch_size=2) for part in (rows[:24], rows[24:])]
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    return learner.Learner(DataLoaders(*parts), model, loss_func=nn.MSELoss(), path=tmp_path)


def test_steps_are_updates_and_validations_are_a_phase(learn, tmp_path):
    callback = SondeCallback(every=1, dir=tmp_path, name="run")
    with learn.no_bar(), learn.no_logging():
        learn.fit(2, cbs=[callback])
    assert callback.watch is None
    with sonde.open(tmp_path / "run") as run:
        assert run.status == "finished"
        assert run.stats("0", kind="output")["step"].tolist() == list(range(24))
        assert run.stats("0.weight", kind="update")["step"].tolist() == list(range(24))
        assert run.stats("0", kind="output", phase="eval")["step"].tolist() == [11, 23]
        assert run.scalars("loss")["step"].tolist() == list(range(24))


def test_accumulated_batches_are_one_step(learn, tmp_path):
    callback = SondeCallback(every=1, dir=tmp_path, name="run")
    with learn.no_bar(), learn.no_logging():
        learn.fit(1, cbs=[callback, GradientAccumulation(8)])
    with sonde.open(tmp_path / "run") as run:
        found = run.stats("0", kind="output", stat="count")
        assert found["step"].tolist() == [0, 1, 2]
        assert found["count"].tolist() == [8 * 8] * 3
