"""The handler for engines of Ignite."""

import pytest
import torch
from training_task import Net, adam, training_rows

import sonde

engines = pytest.importorskip("ignite.engine")

from ignite.handlers import Checkpoint, DiskSaver  # noqa: E402  # after the skip

from sonde.integrations.ignite import SondeHandler  # noqa: E402

ROWS = [(row["x"][None], row["labels"][None]) for row in training_rows()[:12]]


class Plain(Net):
    """Takes what Ignite passes, and returns what its loss takes."""

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())


def made(**options):
    model = Plain()
    optimizer = adam(model)
    loss = torch.nn.functional.mse_loss
    trainer = engines.create_supervised_trainer(
        model, optimizer, loss, gradient_accumulation_steps=2
    )
    evaluator = engines.create_supervised_evaluator(model)
    handler = SondeHandler(model, optimizer, **options)
    handler.attach(trainer)
    saved = {"trainer": trainer, "model": model, "optimizer": optimizer, "sonde": handler}
    return trainer, evaluator, handler, saved


def test_steps_are_updates_and_evaluations_are_a_phase(tmp_path):
    trainer, evaluator, handler, _ = made(every=1, dir=tmp_path, name="run")
    trainer.add_event_handler(engines.Events.EPOCH_COMPLETED, lambda: evaluator.run(ROWS[:4]))
    trainer.run(ROWS, max_epochs=2)
    assert handler.watch is None
    with sonde.open(tmp_path / "run") as run:
        assert run.status == "finished"
        assert run.steps == list(range(12))
        assert run.stats("first", kind="output", phase="eval")["step"].tolist() == [5, 11]
        assert run.scalars("loss")["step"].tolist() == list(range(12))


def test_an_engine_that_is_resumed_continues_its_run(tmp_path):
    trainer, _, _, saved = made(every=1, dir=tmp_path / "runs")
    disk = DiskSaver(tmp_path, create_dir=False)
    keep = Checkpoint(saved, disk, filename_pattern="saved.pt")
    trainer.add_event_handler(engines.Events.EPOCH_COMPLETED(once=1), keep)
    trainer.run(ROWS, max_epochs=2)

    trainer, _, _, saved = made(every=1, dir=tmp_path / "runs")
    Checkpoint.load_objects(saved, torch.load(tmp_path / "saved.pt"))
    trainer.run(ROWS, max_epochs=3)
    (path,) = (p for p in (tmp_path / "runs").iterdir() if not p.is_symlink())
    with sonde.open(path) as run:
        assert run.steps == list(range(18))
