"""The task of `training_task.py` with a library: `python train_with.py LIBRARY FOLDER [resume]`.

Without `resume` it stops after some updates, says so once all is on disk, and waits to be killed.
"""

import logging
import signal
import sys
from pathlib import Path

from training_task import (
    ACCUMULATED,
    CLIP,
    KILLED_AT,
    PER_EPOCH,
    SAVED_AT,
    STEPS,
    VALIDATED_AT,
    Net,
    adam,
    loader,
    training_rows,
    validation_rows,
)


def wait_for_the_kill(watch):
    assert watch.flush()
    print("ready", flush=True)
    while True:
        signal.pause()


def with_transformers(folder, resume):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from sonde.integrations.transformers import SondeCallback

    logging.getLogger("transformers").setLevel(logging.ERROR)
    callback = SondeCallback(every=1, dir=folder / "runs")

    class Course(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_evaluate = state.global_step == VALIDATED_AT
            control.should_save = state.global_step == SAVED_AT
            if state.global_step == KILLED_AT and not resume:
                wait_for_the_kill(callback.watch)
            return control

    model = Net()
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=ACCUMULATED,
        max_grad_norm=CLIP,
        bf16=True,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=5,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=training_rows(),
        eval_dataset=validation_rows(),
        optimizers=(adam(model), None),
        callbacks=[callback, Course()],
    )
    trainer.train(resume_from_checkpoint=resume)


def with_lightning(folder, resume):
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    from sonde.integrations.lightning import SondeCallback

    callback = SondeCallback(every=1, dir=folder / "runs")

    class Course(pl.Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == KILLED_AT and not resume:
                wait_for_the_kill(callback.watch)

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

    class Batches:
        """Keeps its place in a checkpoint: Lightning does not skip what was seen of an epoch."""

        def __init__(self):
            self.batches = list(loader(training_rows()))
            self.at = 0

        def __len__(self):
            return len(self.batches)

        def __iter__(self):
            while self.at < len(self.batches):
                self.at += 1
                yield self.batches[self.at - 1]
            self.at = 0

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    # Not at the end of an epoch: resumed there, Lightning updates after one micro-batch.
    saved_at = SAVED_AT + 1
    saving = ModelCheckpoint(folder, filename="saved", every_n_train_steps=saved_at)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=STEPS,
        accumulate_grad_batches=ACCUMULATED,
        gradient_clip_val=CLIP,
        val_check_interval=VALIDATED_AT * ACCUMULATED,
        check_val_every_n_epoch=None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback, saving, Course()],
    )
    trainer.fit(
        Module(),
        Batches(),
        loader(validation_rows()),
        ckpt_path=str(folder / "saved.ckpt") if resume else None,
    )


def with_accelerate(folder, resume):
    import torch
    from accelerate import Accelerator

    from sonde.integrations.accelerate import SondeTracker

    tracker = SondeTracker(every=1, dir=folder / "runs")
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="bf16",
        gradient_accumulation_steps=ACCUMULATED,
        log_with=tracker,
    )
    accelerator.register_for_checkpointing(tracker)
    accelerator.init_trackers("project", config={"clip": CLIP})
    model = Net()
    model, optimizer, batches = accelerator.prepare(model, adam(model), loader(training_rows()))
    validation = accelerator.prepare(loader(validation_rows()))
    if resume:
        accelerator.load_state(folder / "saved")
    watch = tracker.watch(model, optimizer)
    step = SAVED_AT if resume else 0
    while step < STEPS:
        for batch in batches:
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            accelerator.log({"loss": loss})
            step += 1
            if step == VALIDATED_AT:
                model.eval()
                with torch.no_grad():
                    for held_out in validation:
                        model(**held_out)
                model.train()
            if step == SAVED_AT:
                accelerator.save_state(folder / "saved")
            if step == KILLED_AT and not resume:
                wait_for_the_kill(watch)
            if step == STEPS:
                break
    assert SAVED_AT % PER_EPOCH == 0
    accelerator.end_training()


LIBRARIES = {
    "accelerate": with_accelerate,
    "lightning": with_lightning,
    "transformers": with_transformers,
}

if __name__ == "__main__":
    library, folder, *rest = sys.argv[1:]
    LIBRARIES[library](Path(folder), rest == ["resume"])
