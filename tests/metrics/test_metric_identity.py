"""With every metric on, training is the same to the bit, and so are its random numbers."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sonde


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
        sonde.log("mean", y.mean())
        return self.head(self.act(y).mean((2, 3)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class Transformer(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
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


def every_metric(watch):
    def noisy(x, *_):
        torch.manual_seed(0)
        return torch.rand(3, device=x.device)

    for kind in ("input", "output", "input_grad", "output_grad", "param", "param_grad", "update"):
        watch.add_metric("noisy", noisy, kind=kind)
        watch.add_metric("norm", lambda x: x.float().norm(dim=-1), kind=kind)
    watch.add_metric("l2", lambda a, b: (a - b).float().norm(dim=-1), against="reference")
    watch.add_metric("l2", lambda a, b: (a - b).norm(), kind="param", against="reference")
    for name in (
        *("update_ratio", "update_grad_cosine", "stable_rank", "effective_rank", "dead_fraction"),
        *("channel_max", "per_sample_grad_norm", "rcc", "attention", "gradient_pipeline"),
    ):
        watch.add_metric(name)


def run(watching, make, *, watched, passes=1, autocast=False, scale=None, clip=0.0):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  # the global state is what must not be touched
    model = make()
    trainer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    data = [(torch.randn(6, 32), torch.randint(0, 5, (6,))) for _ in range(3 * passes)]
    if watched:
        watch, memory = watching(model, trainer, reference="init")
        every_metric(watch)
    losses = []
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
        watch.close()
        assert memory.counted("failed") == {}
        assert len(watch.metrics(2)) > 200
    state = {f"model.{k}": v.clone() for k, v in model.state_dict().items()}
    state |= {f"loss.{i}": loss for i, loss in enumerate(losses)}
    state["numbers"] = torch.get_rng_state()
    return state, random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002


def assert_same(watching, make, **options):
    plain, *others = run(watching, make, watched=False, **options)
    watched, *rest = run(watching, make, watched=True, **options)
    assert others == rest
    for name, value in plain.items():
        assert torch.equal(value, watched[name]), name


@pytest.mark.parametrize("make", [Cnn, Transformer])
def test_as_it_is(watching, make):
    assert_same(watching, make)


@pytest.mark.parametrize("make", [Cnn, Transformer])
def test_under_autocast_with_a_scaler_accumulation_and_clipping(watching, make):
    assert_same(watching, make, passes=2, autocast=True, scale=128.0, clip=0.1)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_with_checkpointing(watching, reentrant):
    assert_same(watching, lambda: Transformer(reentrant))
