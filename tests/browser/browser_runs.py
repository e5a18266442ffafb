"""The runs that the browser tests look at, recorded as a user would."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional

import sonde

STEPS = 24
XSS = "<script>hacked=1</script>"
QUOTES = """"'`><img src=x onerror="hacked=1">{{7*7}}"""
LONG = "w" * 10_000


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(c, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        x = sonde.attach(x, "stream")
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, words=32, width=16, heads=2, blocks=3):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.act = nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.pool(self.act(self.stem(x))).flatten(1))


def record_transformer(folder, steps=STEPS, name="transformer"):
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with sonde.watch(model, optimizer, every=1, dir=folder, name=name, log="all") as watch:
        for step in range(steps):
            ids = torch.randint(32, (4, 9))
            logits = model(ids[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss, learning_rate=1e-2 * (1 - step / steps))


def record_cnn(folder, steps=STEPS, name="cnn"):
    torch.manual_seed(0)
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=2, dir=folder, name=name, log="all") as watch:
        for step in range(steps):
            images, labels = torch.randn(8, 3, 8, 8), torch.randint(5, (8,))
            if step >= 16:  # the data break: from here on nothing is finite
                images[0, 0, 0, 0] = torch.inf
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)


def record_strange(folder, name="strange"):
    """Names that want to be markup or code, and one that is longer than any screen."""
    torch.manual_seed(0)
    model = nn.Module()
    for child in (XSS, QUOTES, LONG):
        model._modules[child] = nn.Linear(4, 4)

    def forward(x):
        for module in model.children():
            x = module(x)
        return x

    model.forward = forward
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, dir=folder, name=name) as watch:
        for _ in range(4):
            loss = model(torch.randn(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(**{"loss": loss, XSS: loss})


def train(folder, name, clock):
    """Trains until it is stopped, and writes down when each step was done: for what is live."""
    torch.set_num_threads(1)  # the browser and the server need the other cores
    torch.manual_seed(0)
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        open(clock, "w", buffering=1) as times,
        sonde.watch(model, optimizer, every=1, dir=folder, name=name) as watch,
    ):
        for step in range(100_000):
            loss = model(torch.randn(8, 3, 8, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)
            times.write(f"{step} {time.time()}\n")
            time.sleep(0.05)


if __name__ == "__main__":
    train(*sys.argv[1:])
