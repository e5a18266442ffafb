"""The same training in one process and on many ranks, for tests. Not a test itself.

    python -m torch.distributed.run --standalone --nproc-per-node 2 ranked_training.py FOLDER ddp,tp

Each scenario is trained twice, without a watch and with one: `SCENARIO-RANK.pt` in the folder holds
the losses, the local weights and the number of collectives of each step, of both; `SCENARIO` is the
run. `oracle` is the training in one process, with hooks of its own that keep every tensor.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import sonde

STEPS, MICRO, BATCH, LENGTH = 3, 2, 8, 4
IN, WIDTH, HIDDEN, OUT = 5, 6, 8, 3
"""Six rows on four ranks: the last one has none. Three: one rank of two has one, and padding."""
CLIP = 0.05


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.act = nn.GELU()
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    """`first` and `last` are its blocks: a stage of a pipeline has some of them."""

    def __init__(self, first=0, last=2):
        super().__init__()
        self.embed = nn.Linear(IN, WIDTH) if first == 0 else None
        self.blocks = nn.ModuleDict({str(i): Block() for i in range(first, last)})
        self.norm = nn.LayerNorm(WIDTH) if last == 2 else None
        self.head = nn.Linear(WIDTH, OUT) if last == 2 else None

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def new_model():
    torch.manual_seed(0)
    return Net().double()


def new_optimizer(model, *, is_spread=False):
    if is_spread:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches(rank=0, ranks=1):
    """Per step and micro-batch, what one of so many data-parallel ranks has of it."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        found = []
        for _ in range(MICRO):
            x = torch.randn(BATCH, LENGTH, IN, generator=generator, dtype=torch.float64)
            y = torch.randn(BATCH, LENGTH, OUT, generator=generator, dtype=torch.float64)
            found.append((x.chunk(ranks)[rank], y.chunk(ranks)[rank]))
        yield found


def loss_of(y, target):
    return (y - target).square().mean()


def train(model, optimizer, *, rank=0, ranks=1, clip=False, after=lambda step: None):
    """Train; what each step's loss was, and how many collectives there were."""
    losses, counts, copies = [], [], []
    for micro in batches(rank, ranks):
        before = collectives()
        COPIES.clear()
        total = 0.0
        for x, target in micro:
            loss = loss_of(model(x), target) / MICRO
            loss.backward()
            total += loss.item()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        after(len(losses))
        losses.append(total)
        counts.append([b - a for a, b in zip(before, collectives(), strict=True)])
        copies.append(len(COPIES))
    return {"losses": losses, "collectives": counts, "copies": copies}


COPIES = []
"""Copies to the host by the training thread, since a step began: each would wait for a device."""


def count_copies():
    copy, thread = torch.Tensor.cpu, threading.get_ident()

    def counted(x, *args, **options):
        if threading.get_ident() == thread:
            COPIES.append(x.shape)
        return copy(x, *args, **options)

    torch.Tensor.cpu = counted


def collectives():
    """How many collectives each process group has seen."""
    if not dist.is_initialized():
        return []
    groups = dist.distributed_c10d._world.pg_map
    return [group._get_sequence_number_for_group() for group in groups]


# -- one process ---------------------------------------------------------------------------------


def oracle(*, clip):
    """Every tensor of the training, by step and name of its site."""
    model = new_model()
    optimizer = new_optimizer(model)
    found = [{} for _ in range(STEPS)]
    step = 0

    def keep(name, x):
        found[step].setdefault(name, []).append(x.detach().clone().flatten())

    def leave(path):
        def hook(_module, _args, output):
            keep(f"{path or '.'}/output/0", output)
            output.register_hook(lambda grad: keep(f"{path or '.'}/output_grad/0", grad))

        return hook

    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleDict):
            module.register_forward_hook(leave(path))
    names = dict(model.named_parameters())
    for micro in batches():
        for x, target in micro:
            keep("./input/0", x)
            (loss_of(model(x), target) / MICRO).backward()
        for full, p in names.items():
            site = "{}/{}/{}".format
            path, _, name = full.rpartition(".")
            if clip:
                keep(site(path, "param_grad", f"{name}/before_clip"), p.grad)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        before = {full: p.detach().clone() for full, p in names.items()}
        for full, p in names.items():
            path, _, name = full.rpartition(".")
            keep(f"{path}/param/{name}", p)
            keep(f"{path}/param_grad/{name}", p.grad)
        optimizer.step()
        for full, p in names.items():
            path, _, name = full.rpartition(".")
            keep(f"{path}/update/{name}", p - before[full])
            for state in ("exp_avg", "exp_avg_sq"):
                keep(f"{path}/optim/{name}/{state}", optimizer.state[p][state])
        optimizer.zero_grad()
        step += 1
    return [{name: torch.cat(parts).numpy() for name, parts in s.items()} for s in found]


# -- many ranks: each returns a model, and which data-parallel rank of how many this is ----------


def ddp(rank, world):
    return nn.parallel.DistributedDataParallel(new_model()), rank, world


def fsdp2(rank, world):
    return sharded(new_model(), None), rank, world


def hsdp(rank, world):
    mesh = dist.init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    return sharded(new_model(), mesh), rank, world


def fsdp1(rank, world):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(
        new_model(), use_orig_params=True, device_id=torch.device("cpu")
    )
    return model, rank, world


def zero(rank, world):
    """Optimizer state on one rank for each parameter: ZeRO-1."""
    return ddp(rank, world)


def sharded(model, mesh):
    from torch.distributed.fsdp import fully_shard

    options = {} if mesh is None else {"mesh": mesh}
    for block in model.blocks.values():
        fully_shard(block, **options)
    return fully_shard(model, **options)


def tp(rank, world):
    mesh = dist.init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    return split(new_model(), mesh), 0, 1


def split(model, mesh):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks.values():
        parallelize_module(block, mesh, plan)
    return model


def sp(rank, world):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = dist.init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    model = new_model()
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model.blocks.values():
        parallelize_module(block, mesh, plan)
    ends = {
        "embed": ColwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, ends), 0, 1


def fsdp_tp(rank, world):
    mesh = dist.init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    model = sharded(split(new_model(), mesh["tp"]), mesh["dp"])
    return model, mesh["dp"].get_local_rank(), world // 2


def ddp_tp(rank, world):
    """Tensor parallelism inside, copies of it outside; the mesh of tensors knows only the first."""
    mesh = dist.init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    model = split(new_model(), mesh["tp"])
    group = mesh["dp"].get_group()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: average(p, group))
    return model, mesh["dp"].get_local_rank(), world // 2


def average(p, group):
    """As DDP would, for gradients of distributed tensors, too."""
    from torch.distributed.tensor import DTensor

    grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
    if getattr(p, "passes", 0) + 1 == MICRO:
        dist.all_reduce(grad, group=group)
        grad /= dist.get_world_size(group)
    p.passes = (getattr(p, "passes", 0) + 1) % MICRO


def unnamed(rank, world):
    """A run without a name, which is one run all the same."""
    return ddp(rank, world)


def drifting(rank, world):
    """One replica of a weight goes its own way from the second step on; all have one batch."""
    model, *_ = ddp(rank, world)
    return model, 0, 1


def go_astray(model, rank, step):
    if rank == 1 and step == 0:
        with torch.no_grad():
            model.module.head.weight[0, 0] += 1e-3


SCENARIOS = {
    2: ("ddp", "fsdp2", "fsdp1", "zero", "tp", "sp", "pp", "unnamed", "drifting"),
    4: ("ddp", "fsdp2", "hsdp", "fsdp_tp", "ddp_tp", "uneven"),
}
CLIPPED = {"ddp", "fsdp2", "hsdp", "uneven", "unnamed"}


def uneven(rank, world):
    """Ranks record at other steps, other modules, or not at all: nothing may wait for another."""
    return fsdp2(rank, world)


UNEVEN = ({"every": 1}, {"every": 2}, {"every": 1, "include": "blocks.0*"}, None)


def pipeline(watch, folder):
    """1F1B over two stages, with the loss of the last one."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    whole = new_model()
    stage = Net(rank, rank + 1).double()
    stage.load_state_dict({k: v for k, v in whole.state_dict().items() if k in stage.state_dict()})
    optimizer = new_optimizer(stage)
    device = torch.device("cpu")
    schedule = Schedule1F1B(
        PipelineStage(stage, rank, 2, device), n_microbatches=MICRO, loss_fn=loss_of
    )
    watched = watch(stage, optimizer, "pp")
    losses, counts = [], []
    for micro in batches():
        x, target = (torch.cat(each) for each in zip(*micro, strict=True))
        before, found = collectives(), []
        schedule.step(x) if rank == 0 else schedule.step(target=target, losses=found)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(loss.item() for loss in found) / MICRO)
        counts.append([b - a for a, b in zip(before, collectives(), strict=True)])
    if watched is not None:
        watched.close()
    return {"losses": losses, "collectives": counts, "weights": weights(stage)}


def weights(model):
    from torch.distributed.tensor import DTensor

    return [p.to_local() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]


def scenario(name, folder, *, watched):
    rank, world = dist.get_rank(), dist.get_world_size()
    options = {"every": 1, "log": "default"}
    if name == "uneven":
        options = UNEVEN[rank]

    def watch(model, optimizer, run):
        if not watched or options is None:
            return None
        if run == "unnamed":
            return sonde.watch(model, optimizer, dir=folder / run, **options)
        return sonde.watch(model, optimizer, dir=folder, name=run, **options)

    if name == "pp":
        return pipeline(watch, folder)
    model, data_rank, data_ranks = globals()[name](rank, world)
    optimizer = new_optimizer(model, is_spread=name == "zero")
    made = watch(model, optimizer, name)
    own = {"rank": data_rank, "ranks": data_ranks, "clip": name in CLIPPED}
    if name == "drifting":
        own["after"] = lambda step: go_astray(model, rank, step)
    found = train(model, optimizer, **own)
    if made is not None:
        made.close()
    found["weights"] = weights(model)
    return found


def dying(folder, *, watched):
    """Rank 1 dies in the third step; rank 0 finds out when it waits for it, and says how."""
    rank = dist.get_rank()
    model, *_ = ddp(rank, 2)
    optimizer = new_optimizer(model)
    watch = None
    if watched:
        watch = sonde.watch(model, optimizer, dir=folder, name="dying", every=1, flush_s=0.1)
    steps = 0
    try:
        for micro in batches(rank, 2):
            if rank == 1 and steps == 2:
                if watch is not None:
                    watch.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            for x, target in micro:
                loss_of(model(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    except RuntimeError as error:
        print(f"step {steps}: {type(error).__name__}")
        if watch is not None:
            watch.close()
        sys.stdout.flush()
        os._exit(3)


def elastic(folder):
    """Both ranks fail once after two steps; the launcher starts them again, from a checkpoint.

    Without a process group: after a restart, gloo may find addresses of the ranks that are gone.
    """
    rank, restarts = (int(os.environ[n]) for n in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
    model = new_model()
    optimizer = new_optimizer(model)
    saved = folder / f"checkpoint-{rank}.pt"
    if restarts:
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    with sonde.watch(model, optimizer, dir=folder, name="elastic", every=1) as watch:
        for step, micro in enumerate(batches()):
            if step < restarts:
                continue
            for x, target in micro:
                loss_of(model(x), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved
                )
            if step == 1 and not restarts:
                watch.flush()
                (folder / f"failing-{rank}").touch()
                while not all((folder / f"failing-{r}").exists() for r in range(2)):
                    time.sleep(0.02)
                os._exit(1)


def main(folder, names):
    torch.set_num_threads(1)
    if names == ["elastic"]:
        elastic(folder)
        return
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if names[0].startswith("dying"):
        dying(folder, watched=names[0] == "dying_watched")
        return
    count_copies()
    for name in names:
        plain = scenario(name, folder, watched=False)
        watched = scenario(name, folder, watched=True)
        torch.save({"plain": plain, "watched": watched}, folder / f"{name}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","))
    sys.stdout.flush()
    os._exit(0)
