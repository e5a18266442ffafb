"""Training is untouched: with and without a watch, losses and weights are the same bits."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Cnn(nn.Module):
    """BatchNorm, in-place activations, in-place residuals."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.act(self.norm(self.stem(x.unflatten(1, (1, 8, 4)))))
        y = self.norm2(self.conv(x))
        y += x
        return self.head(self.act(y).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Dropout, attention, and checkpointing if asked for."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.head = nn.Linear(8, 5)
        self.reentrant = reentrant

    def forward(self, x):
        x = self.embed(x.unflatten(1, (8, 4)))
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x.mean(1))


def mlp():
    return nn.Sequential(
        nn.Linear(32, 16), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(16, 5)
    )


MODELS = {"mlp": mlp, "cnn": Cnn, "transformer": Transformer}


def run(
    watching, make, *, watched, optimizer="adamw", passes=1, autocast=False, scale=None, clip=0
):
    """A short training; what can be told of it from outside, in bits."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  # the global state is what must not be touched
    model = make()
    trainer = OPTIMIZERS[optimizer](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    data = [(torch.randn(6, 32), torch.randint(0, 5, (6,))) for _ in range(3 * passes)]
    watch = watching(model, trainer)[0] if watched else contextlib.nullcontext()
    losses = []
    with watch:
        for step in range(3):
            for x, y in data[step * passes : (step + 1) * passes]:
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = nn.functional.cross_entropy(model(x), y) / passes
                scaler.scale(loss).backward()
                losses.append(loss.detach().clone())
            if clip:
                scaler.unscale_(trainer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(trainer)
            scaler.update()
            trainer.zero_grad()
            if watched:
                watch.log(loss=loss)
    state = {f"model.{k}": v.clone() for k, v in model.state_dict().items()}
    for i, kept in trainer.state_dict()["state"].items():
        state |= {f"{i}.{k}": v for k, v in kept.items() if torch.is_tensor(v)}
    state |= {f"loss.{i}": loss for i, loss in enumerate(losses)}
    state["torch rng"] = torch.get_rng_state()
    numbers = (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    return state, numbers


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "for-loop": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
}


def assert_untouched(watching, make, **options):
    plain, numbers = run(watching, make, watched=False, **options)
    watched, watched_numbers = run(watching, make, watched=True, **options)
    assert plain.keys() == watched.keys()
    different = [k for k in plain if not torch.equal(plain[k], watched[k])]
    assert not different
    assert numbers == watched_numbers


@pytest.mark.parametrize("model", MODELS)
def test_training_is_the_same_bits(watching, model):
    assert_untouched(watching, MODELS[model])


@pytest.mark.parametrize("model", MODELS)
def test_with_accumulation_and_clipping(watching, model):
    assert_untouched(watching, MODELS[model], passes=3, clip=0.5)


@pytest.mark.parametrize("model", MODELS)
def test_under_autocast(watching, model):
    assert_untouched(watching, MODELS[model], autocast=True)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_with_checkpointing(watching, reentrant, autocast):
    make = lambda: Transformer(reentrant)  # noqa: E731
    assert_untouched(watching, make, autocast=autocast, passes=2)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("scale", [None, 256.0, 3e38])
def test_with_every_optimizer_and_a_scaler(watching, optimizer, scale):
    """The last scale is so large that updates are skipped."""
    assert_untouched(watching, mlp, optimizer=optimizer, scale=scale)


def test_the_runs_that_are_compared_do_train(watching):
    """The comparison above means something: the runs do train, and do depend on the seed."""
    state, _ = run(watching, mlp, watched=False)
    torch.manual_seed(7)
    fresh = mlp().state_dict()
    assert not any(torch.equal(state[f"model.{k}"], v) for k, v in fresh.items())
