"""Training loops of other libraries: Accelerate and the Trainer of transformers, as people use
them. What they record is what a plain loop over the same batches records.
"""

import copy
import logging

import pytest
import torch
from torch import nn

import sonde

ACCUMULATED = 2
"""Batches per optimizer step."""


class Model(nn.Module):
    """Returns a dict with the loss, as models of transformers do, and keeps its batches."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 1)
        self.batches = []

    def forward(self, x, labels):
        self.batches.append((x.clone(), labels.clone()))
        y = self.last(self.first(x).relu())
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}


@pytest.fixture(autouse=True)
def fresh():
    """Accelerate keeps the precision and device of its first use in a process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def rows():
    torch.manual_seed(1)
    return [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(16)]


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def plain(model, optimizer, batches, watching):
    """The sketches of a loop without any library."""
    watch, memory = watching(model, optimizer, name="plain")
    for i in range(0, len(batches), ACCUMULATED):
        for x, labels in batches[i : i + ACCUMULATED]:
            (model(x=x, labels=labels)["loss"] / ACCUMULATED).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    return memory


def assert_same(found, expected, steps):
    assert [s for s in found.steps if s[1] == "train"] == [(i, "train") for i in range(steps)]
    assert expected.steps == [(i, "train") for i in range(steps)]
    for i in range(steps):
        ours, theirs = found.at(i), expected.at(i)
        assert ours.keys() == theirs.keys()
        assert ours["first/param_grad/weight"].count == 32
        for name in theirs:
            assert ours[name] == theirs[name], (i, name)


def test_a_loop_with_accelerate_records_what_a_plain_loop_does(model, rows, watching):
    from accelerate import Accelerator

    twin = copy.deepcopy(model)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    wrapped, optimizer, loader = accelerator.prepare(model, adam(model), loader)
    watch, memory = watching(wrapped, optimizer)
    for batch in loader:
        with accelerator.accumulate(wrapped):
            accelerator.backward(wrapped(**batch)["loss"])
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(wrapped.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    assert len(model.batches) == 8
    assert_same(memory, plain(twin, adam(twin), model.batches, watching), steps=4)


def trainer_of(model, rows, folder, **more):
    from transformers import Trainer, TrainingArguments

    logging.getLogger("transformers").setLevel(logging.ERROR)
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=ACCUMULATED,
        max_grad_norm=0.5,
        lr_scheduler_type="constant",
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    return Trainer(model, arguments, train_dataset=rows, **more)


def test_the_trainer_of_transformers_records_what_a_plain_loop_does(
    model, rows, watching, tmp_path
):
    twin = copy.deepcopy(model)
    optimizer = adam(model)
    trainer = trainer_of(model, rows, tmp_path, optimizers=(optimizer, None))
    watch, memory = watching(model, optimizer)
    trainer.train()
    watch.close()
    assert len(model.batches) == 8
    assert_same(memory, plain(twin, adam(twin), model.batches, watching), steps=4)


def test_a_callback_of_the_trainer_can_watch_the_optimizer_it_is_given(
    model, rows, watching, tmp_path
):
    from transformers import TrainerCallback

    class Watching(TrainerCallback):
        def on_train_begin(self, args, state, control, model, optimizer, **kwargs):
            self.watch, self.memory = watching(model, optimizer)

        def on_train_end(self, args, state, control, **kwargs):
            self.watch.close()

    twin = copy.deepcopy(model)
    callback = Watching()
    trainer = trainer_of(
        model, rows, tmp_path, optimizers=(adam(model), None), callbacks=[callback]
    )
    trainer.train()
    assert_same(callback.memory, plain(twin, adam(twin), model.batches, watching), steps=4)


class Wrapper(torch.optim.Optimizer):
    """As Accelerate wraps an optimizer: a subclass that never calls `Optimizer.__init__`."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        self.optimizer.step(closure)


class Mirror(Wrapper):
    """As Fabric wraps one: with everything of the inner optimizer in its own `__dict__`."""

    def __init__(self, optimizer):
        self.__dict__.update(optimizer.__dict__)
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups):
        raise AttributeError


class Lookahead(torch.optim.Optimizer):
    """An optimizer of its own that uses another: what it changes counts."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, {})

    def step(self, closure=None):
        self.optimizer.step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.mul_(0.5)


@pytest.mark.parametrize(
    "wrap",
    [Wrapper, lambda o: Wrapper(Wrapper(o)), Mirror, lambda o: Mirror(Wrapper(o))],
    ids=["without init", "twice", "mirror", "both"],
)
def test_a_wrapped_optimizer_is_unwrapped(model, watching, wrap):
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1))
    watch, memory = watching(model, optimizer)
    for _ in range(3):
        model(torch.ones(2, 4), torch.ones(2, 1))["loss"].backward()
        optimizer.step()
    watch.close()
    assert memory.steps == [(0, "train"), (1, "train"), (2, "train")]
    assert memory.at(2)["first/update/weight"].count == 32


def test_an_optimizer_that_uses_another_is_watched_itself(model, watching):
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.0))
    watch, memory = watching(model, optimizer)
    model(torch.ones(2, 4), torch.ones(2, 1))["loss"].backward()
    optimizer.step()
    watch.close()
    assert memory.at(0)["first/update/weight"].max_abs > 0


def test_an_optimizer_that_was_never_set_up_is_an_error_that_says_so(model, tmp_path):
    class Empty(torch.optim.Optimizer):
        def __init__(self):
            pass

    with pytest.raises(sonde.SondeError, match=r"Empty.*__init__"):
        sonde.watch(model, Empty(), dir=tmp_path)


# -- a watch that fails ------------------------------------------------------------------------


def hooks_of(model, optimizer):
    found = [len(d) for m in model.modules() for d in (m._forward_hooks, m._forward_pre_hooks)]
    return sum(found) + len(optimizer._optimizer_step_pre_hooks)


class Refusing(torch.optim.SGD):
    def register_step_post_hook(self, hook):
        raise RuntimeError("no hooks, please")


@pytest.mark.parametrize(
    "mistake",
    [
        {"reference": "unit"},
        {"reference": 5},
        {"rank": 7, "world_size": 2},
        {"flush_s": -1},
        {"optimizer": Refusing},
        {"name": "taken"},
    ],
    ids=lambda mistake: next(iter(mistake)),
)
def test_a_watch_that_fails_leaves_no_hook_and_no_run(model, tmp_path, mistake):
    options = dict(mistake)
    optimizer = options.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=0.1)
    (tmp_path / "taken").write_text("a file")
    clip = torch.nn.utils.clip_grad._clip_grads_with_norm_
    with pytest.raises((sonde.SondeError, RuntimeError)):
        sonde.watch(model, optimizer, dir=tmp_path, **options)
    assert hooks_of(model, optimizer) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
    assert torch.nn.utils.clip_grad._clip_grads_with_norm_ is clip
    assert sonde.attach("x", "name") == "x"
    with sonde.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), dir=tmp_path, name="ok"):
        pass
