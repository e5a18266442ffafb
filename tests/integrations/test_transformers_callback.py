"""The callback for the Trainer of transformers."""

import inspect
import logging

import pytest
from training_task import Net, adam, training_rows, validation_rows
from transformers import Trainer, TrainingArguments

import sonde
from sonde.integrations.training import WatchOptions
from sonde.integrations.transformers import SondeCallback


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """Makes a trainer of four updates; runs go to `runs` of the folder."""
    monkeypatch.chdir(tmp_path)
    logging.getLogger("transformers").setLevel(logging.ERROR)

    def make(*callbacks, **more):
        model = Net()
        options = {
            "output_dir": str(tmp_path / "trainer"),
            "max_steps": 4,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "use_cpu": True,
            "report_to": [],
            "save_strategy": "no",
            "logging_steps": 2,
            "disable_tqdm": True,
        }
        return Trainer(
            model,
            TrainingArguments(**(options | more)),
            train_dataset=training_rows(),
            eval_dataset=validation_rows(),
            optimizers=(adam(model), None),
            callbacks=list(callbacks),
        )

    return make


def test_report_to_names_it_like_any_tracker(trainer, tmp_path):
    trainer(report_to="sonde").train()
    with sonde.open(tmp_path / "runs" / "latest") as run:
        found = run.stats("first", kind="output")
        assert found["step"].tolist() == [0]  # every tenth by default
        assert run.info["config"]["user"]["trainer"]["max_steps"] == 4


def test_what_the_trainer_logs_belongs_to_the_update_before_it(trainer, tmp_path):
    trainer(SondeCallback(every=1, name="logged")).train()
    with sonde.open(tmp_path / "runs" / "logged") as run:
        assert run.scalars("loss")["step"].tolist() == [1, 3]
        assert run.scalars("learning_rate")["step"].tolist() == [1, 3]
        assert run.scalars("grad_norm")["step"].tolist() == [0, 1, 2, 3]  # Sonde's own


def test_all_evaluations_are_recorded(trainer, tmp_path):
    trainer(SondeCallback(every=4, name="evaluated"), eval_strategy="steps", eval_steps=1).train()
    with sonde.open(tmp_path / "runs" / "evaluated") as run:
        found = run.stats("first", kind="output", phase="eval")
        assert found["step"].tolist() == [0, 1, 2, 3]
        assert run.stats("first", kind="output", phase="train")["step"].tolist() == [0]
        assert run.scalars("eval_loss")["step"].tolist() == [0, 1, 2, 3]


def test_a_training_that_begins_anew_is_another_run(trainer, tmp_path):
    made = trainer(SondeCallback())
    made.train()
    made.train()
    assert len([p for p in (tmp_path / "runs").iterdir() if not p.is_symlink()]) == 2


def test_a_compiled_model_has_its_own_names(trainer, tmp_path):
    callback = SondeCallback(every=1, name="compiled")
    trainer(callback, torch_compile=True, torch_compile_backend="aot_eager").train()
    with sonde.open(tmp_path / "runs" / "compiled") as run:
        assert run.stats("first", kind="output")["step"].tolist() == [0, 1, 2, 3]
        assert run.stats("first.weight", kind="update")["step"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"evry": 10}, "takes no option `evry`: see `sonde.watch`"),
        ({"resume": True}, "takes no option `resume`: the trainer sets it"),
    ],
)
def test_an_option_that_it_does_not_take_is_refused_when_it_is_made(options, text):
    with pytest.raises(sonde.SondeError, match=text):
        SondeCallback(**options)


def test_it_takes_every_option_of_watch_that_the_trainer_does_not_set():
    asked = {"model", "optimizer", "resume", "step", "rank", "world_size"}
    given = WatchOptions.__annotations__.keys()
    assert given | asked == inspect.signature(sonde.watch).parameters.keys()
    assert not given & asked
