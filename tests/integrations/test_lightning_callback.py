"""The callback for the Trainer of Lightning."""

import pytest
import torch
from training_task import Net, adam, loader, training_rows, validation_rows

import sonde

pl = pytest.importorskip("lightning.pytorch")

from sonde.integrations.lightning import SondeCallback  # noqa: E402  # after the skip


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch):
        return self.net(**batch)["loss"]

    def validation_step(self, batch):
        self.log("val_loss", self.net(**batch)["loss"], batch_size=2)

    def configure_optimizers(self):
        return adam(self)


class Adversarial(Module):
    """Two optimizers, stepped by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch):
        for optimizer in self.optimizers():
            loss = self.net(**batch)["loss"]
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        first = torch.optim.SGD(self.net.first.parameters(), lr=0.01)
        return [first, torch.optim.SGD(self.net.last.parameters(), lr=0.01)]


@pytest.fixture
def fit(tmp_path):
    """Fits a module; the run, opened."""

    def fit(module, callback, **more):
        options = {
            "accelerator": "cpu",
            "devices": 1,
            "max_steps": 4,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        trainer = pl.Trainer(callbacks=[callback], **(options | more))
        trainer.fit(module, loader(training_rows()), loader(validation_rows()))
        assert callback.watch is None
        return sonde.open(tmp_path / "runs" / "latest")

    return fit


def test_the_loss_of_every_update_and_the_numbers_of_a_validation_are_recorded(fit, tmp_path):
    callback = SondeCallback(every=1, dir=tmp_path / "runs")
    run = fit(Module(), callback, accumulate_grad_batches=2, val_check_interval=4)
    assert run.scalars("loss")["step"].tolist() == [0, 1, 2, 3]
    assert run.scalars("val_loss")["step"].tolist() == [1, 3]
    # The check of validation before training is none of it.
    assert run.stats("net.first", kind="output", phase="eval")["step"].tolist() == [1, 3]


def test_steps_are_the_trainer_s_with_several_optimizers(fit, tmp_path):
    run = fit(Adversarial(), SondeCallback(every=1, dir=tmp_path / "runs"), max_steps=8)
    assert run.steps == [0, 2, 4, 6]


def test_a_model_wrapped_for_several_processes_has_its_own_names(fit, tmp_path):
    strategy = pl.strategies.DDPStrategy(process_group_backend="gloo")
    try:
        run = fit(Module(), SondeCallback(every=1, dir=tmp_path / "runs"), strategy=strategy)
    finally:
        torch.distributed.destroy_process_group()
    assert run.stats("net.first", kind="output")["step"].tolist() == [0, 1, 2, 3]
    assert run.stats("net.first.weight", kind="update")["step"].tolist() == [0, 1, 2, 3]


def test_a_compiled_module_has_its_own_names(fit, tmp_path):
    module = torch.compile(Module(), backend="aot_eager")
    run = fit(module, SondeCallback(every=1, dir=tmp_path / "runs"))
    assert run.stats("net.first", kind="output")["step"].tolist() == [0, 1, 2, 3]


def test_a_training_that_fails_has_failed(tmp_path, fit):
    class Failing(Module):
        def training_step(self, batch):
            if self.trainer.global_step == 2:
                raise RuntimeError("out of memory")
            return super().training_step(batch)

    with pytest.raises(RuntimeError, match="out of memory"):
        fit(Failing(), SondeCallback(every=1, dir=tmp_path / "runs"))
    with sonde.open(tmp_path / "runs" / "latest") as run:
        assert run.status == "failed"
        assert run.stats("net.first", kind="output")["step"].tolist() == [0, 1]
