"""Tensor parallelism: a layer that is split over ranks is recorded as one.

    torchrun --nproc-per-node 2 examples/tp.py

Both ranks train on the same batch. `up` is cut by columns and `down` by rows, so each rank holds
half of the activations of `up`, and all of those of `down`: each value counts once.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import sonde


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def main(folder):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    with sonde.watch(model, optimizer, every=5, dir=folder, name="tp") as watch:
        for _ in range(20):
            x = torch.randn(32, 64)
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)
    dist.barrier()
    if dist.get_rank() == 0:
        run = sonde.open(watch.path)
        for row in run.stats(kind="output", stat=["count", "rms"], frame="arrow").to_pylist():
            print("step {step}: {name} has {count:,} values of rms {rms:.4f}".format(**row))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs")
