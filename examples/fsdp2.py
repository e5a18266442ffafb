"""FSDP2: each rank records its own shards, and the run shows whole tensors.

    torchrun --nproc-per-node 2 examples/fsdp2.py

Runs on the CPU. On GPUs, use the backend `nccl` and the device `cuda`; nothing else changes.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import sonde


def main(folder):
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same weights on all ranks, before they are sharded
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())  # another batch on each rank
    with sonde.watch(model, optimizer, every=5, dir=folder, name="fsdp2") as watch:
        for _ in range(20):
            x, y = torch.randn(32, 64), torch.randint(10, (32,))
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)
    dist.barrier()
    if dist.get_rank() == 0:
        run = sonde.open(watch.path)
        table = run.stats("0.weight", kind="param", stat=["count", "norm"], frame="arrow")
        for row in table.to_pylist():
            print("step {step}: {name} has {count:,} values of norm {norm:.4f}".format(**row))
        for row in run.scalars("grad_norm", frame="arrow").to_pylist():
            print("step {step}: the norm of all gradients is {value:.4f}".format(**row))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs")
