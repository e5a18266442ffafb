"""A training whose every number follows from its step. Run, killed and resumed by `soak.py`.

    python soak_training.py FOLDER NAME {new,resume} STEPS_PER_S

Prints `s STEP NANOSECONDS` after every step and `f STEP` after a flush that held all before it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch import nn

import sonde

N = 16
"""Elements of each tensor."""

FLUSH_EVERY = 50


def value(step: int) -> float:
    """What every element is at a step: exact in float32, and so is any sum of 16 of them."""
    return 1 + (step % 97) / 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(N))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x * 2
        return kept / 2 + 0 * self.weight


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def main(folder: str, name: str, how: str, steps_per_s: float) -> None:
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    first = 0 if how == "new" else sonde.open(os.path.join(folder, name)).steps[-1] + 1
    is_ending: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: is_ending.append(True))
    with (
        sonde.watch(
            model, optimizer, every=1, dir=folder, name=name, resume=how == "resume"
        ) as watch,
        sonde.trace(model, "layers.0.forward.kept", always=True),
    ):
        os.write(1, f"b {first}\n".encode())
        for step in range(first, sys.maxsize):
            model(torch.full((N,), value(step))).sum().backward()
            watch.log(loss=value(step))
            optimizer.step()
            optimizer.zero_grad()
            os.write(1, f"s {step} {time.monotonic_ns()}\n".encode())
            if step % FLUSH_EVERY == FLUSH_EVERY - 1 and watch.flush():
                os.write(1, f"f {step}\n".encode())
            if is_ending:
                return
            time.sleep(1 / steps_per_s)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
