"""One rank of a training that is traced: `python traced_rank.py SCENARIO RANK WORLD FOLDER`.

Leaves `found-RANK.pt` in the folder: what its trace found, and what the model really saw.
"""

import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sonde
from sonde.tracing import HDF5, stack_padded

N, B, C = 16, 3, 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(C, C)

    def forward(self, x):
        q = self.fc(x)
        return q.tanh()


def mean_of_window(name, values, iterations, ranks):
    values[0] = values[0].mean(dim=(0, 1))


def train(model, steps=N, *, rank=0, begin=lambda step: None):
    """The inputs of each step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(100 + rank)
    seen = []
    for step in range(steps):
        begin(step)
        x = torch.randn(B, C, generator=generator)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(x)
    return torch.stack(seen)


def taken(trace):
    return {n: (r.iterations, r.ranks, r.values) for n, r in trace.results.items()}


def wrapped(world):
    torch.manual_seed(0)
    model = Model()
    return DistributedDataParallel(model) if world > 1 else model


# -- scenarios: (rank, world, folder) -> what was found -----------------------------------------


def stacked(rank, world, folder):
    """The first example of the specification."""
    model = wrapped(world)
    options = {k: [stack_padded] for k in ("before_gather", "after_gather", "after_trace")}
    with sonde.trace(model, ["forward", "forward.x"], gather_every=4, **options) as trace:
        seen = train(model, rank=rank)
    return {"trace": taken(trace), "seen": seen}


def file(rank, world, folder):
    """The second one: straight to HDF5."""
    model = wrapped(world)
    into = HDF5(folder / "values" / "test.h5")
    with sonde.trace(
        model, ["forward", "forward.x"], after_gather=[stack_padded], gather_every=2, into=into
    ) as trace:
        seen = train(model, rank=rank)
    return {"trace": taken(trace), "seen": seen}


def mean(rank, world, folder):
    """The third one: the mean over ranks and batches."""
    model = wrapped(world)
    with sonde.trace(
        model,
        ["forward", "forward.x"],
        after_gather=[stack_padded, mean_of_window],
        after_trace=[stack_padded],
        gather_every=4,
    ) as trace:
        seen = train(model, rank=rank)
    return {"trace": taken(trace), "seen": seen}


def tail(rank, world, folder):
    """Windows of 4 in 6 iterations, of which each rank traces others; one value is no tensor."""
    model = wrapped(world)
    paths = ["forward.x", "forward.self.fc.in_features", "fc.forward.input"]
    with sonde.trace(model, paths, gather_every=4, every=1 + rank) as trace:
        seen = train(model, 6, rank=rank)
    return {"trace": taken(trace), "seen": seen}


def run(rank, world, folder):
    """Every rank writes into one run, without any communication."""
    model = wrapped(world)
    with (
        sonde.watch(model, dir=folder, name="run", every=2, rank=rank, world_size=world) as watch,
        sonde.trace(model, ["forward.q", "fc"]) as trace,
    ):
        seen = train(model, 4, rank=rank, begin=lambda step: watch.step() if step else None)
    return {"trace": taken(trace), "seen": seen}


def lost(rank, world, folder):
    """Rank 1 traces half of the iterations, rank 2 is killed in the middle, rank 3 nothing."""
    model = Model()  # without collectives, which the death of a rank would end for all

    def begin(step):
        if step == 8 and rank == 2:
            trace.flush()
            kept.flush()
            (folder / "dying").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 12 and rank != 2:
            while not (folder / "dying").exists():
                time.sleep(0.05)

    if rank == 3:
        return {"seen": train(model, rank=rank, begin=begin)}
    trace = sonde.trace(
        model, ["forward.x"], gather_every=2, timeout_s=2, into=HDF5(folder / "lost.h5")
    )
    kept = sonde.trace(model, ["forward.x"], gather_every=2, timeout_s=2)
    seen = train(model, 8 if rank == 1 else N, rank=rank, begin=begin)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trace.close()
        kept.close()
    texts = [str(w.message) for w in said]
    return {"trace": taken(kept), "seen": seen, "said": texts}


def main(names, rank, world, folder):
    torch.set_num_threads(1)
    if world > 1:
        join(rank, world, folder)
    for name in names.split(","):
        found = globals()[name](rank, world, folder)
        torch.save(found, folder / f"{name}-{rank}.pt")
    if world > 1 and names != "lost":
        dist.barrier()
    if names == "lost":
        leave(rank, world, folder)


def join(rank, world, folder):
    port = folder / "port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, world, is_master=True, wait_for_workers=False)
        (folder / "port.new").write_text(str(store.port))
        (folder / "port.new").rename(port)
    else:
        while not port.exists():
            time.sleep(0.02)
        store = dist.TCPStore("127.0.0.1", int(port.read_text()), world, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def leave(rank, world, folder):
    """Rank 0 holds the store: it goes last. Nobody waits for the dead."""
    while rank == 0 and not all((folder / f"lost-{r}.pt").exists() for r in (1, 3)):
        time.sleep(0.05)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
