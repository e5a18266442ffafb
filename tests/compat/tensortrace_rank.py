"""The examples of TensorTracer's README as one rank runs them: `tensortrace_rank.py RANK WORLD`.

Leaves what it found in `found-RANK.pt`.
"""

import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from sonde.compat.tensortrace import H5PYSaverCallback, ModelTracer, stack_padded_tensors

B, C, EPOCHS, BATCHES = 3, 5, 4, 4
N = EPOCHS * BATCHES
RANK, WORLD = int(sys.argv[1]), int(sys.argv[2])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(C, C)

    def forward(self, x):
        return self.fc(x)


def loop(model, ddp_model):
    """The training loop of the examples; all inputs of this rank, in order."""
    features = torch.arange(B * BATCHES * WORLD * C, dtype=torch.float32).view(-1, C)
    dataset = TensorDataset(features, torch.zeros(len(features)))
    sampler = DistributedSampler(dataset, WORLD, RANK)
    dataloader = DataLoader(dataset, batch_size=B, sampler=sampler)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=1e-6)
    loss_fn = nn.CrossEntropyLoss()
    seen = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        ddp_model.train()
        for data, target in dataloader:
            optimizer.zero_grad()
            output = ddp_model(data)
            loss = loss_fn(output, target.long())
            loss.backward()
            optimizer.step()
            seen.append(data)
    return torch.stack(seen)


def first(model, ddp_model):
    tracer = ModelTracer(
        model,
        ["forward", "forward.x"],
        pre_gather_callbacks=[stack_padded_tensors],
        post_gather_callbacks=[stack_padded_tensors],
        post_trace_callbacks=[stack_padded_tensors],
        gathering_interval=4,
    )
    with tracer:
        seen = loop(model, ddp_model)
    return {"results": taken(tracer), "seen": seen}


def second(model, ddp_model):
    saver_callback = H5PYSaverCallback(dataset_file="test.h5")
    tracer = ModelTracer(
        model,
        ["forward", "forward.x"],
        post_gather_callbacks=[stack_padded_tensors, saver_callback],
        gathering_interval=2,
    )
    with tracer:
        seen = loop(model, ddp_model)
    shape = tuple(saver_callback.datasets["forward.x"].shape) if RANK == 0 else None
    saver_callback.close()
    return {"results": taken(tracer), "seen": seen, "shape": shape}


def third(model, ddp_model):
    def mean_post_gather(name, values, iterations, ranks):
        values[0] = values[0].mean(dim=(0, 1))

    tracer = ModelTracer(
        model,
        ["forward", "forward.x"],
        post_gather_callbacks=[stack_padded_tensors, mean_post_gather],
        post_trace_callbacks=[stack_padded_tensors],
        gathering_interval=4,
    )
    with tracer:
        seen = loop(model, ddp_model)
    return {"results": taken(tracer), "seen": seen}


def plain(model, ddp_model):
    """Without callbacks, traced through the wrapper; the last window is not full."""
    with ModelTracer(ddp_model, "forward.x", gathering_interval=3) as tracer:
        loop(model, ddp_model)
    return {"results": taken(tracer), "current_iteration": tracer.current_iteration}


class Harmful:
    """Something that runs code where it is unpickled."""

    def __reduce__(self):
        return open, (f"unpickled-by-{RANK}", "w")


class Holding(nn.Module):
    def forward(self, x):
        held = Harmful()
        return x if held is None else x + 1


def foreign(_model, _ddp_model):
    """A variable that only pickle could send as it is."""
    model = Holding()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is refused, and said
        with ModelTracer(model, ["forward.held", "forward"]) as tracer:
            model(torch.ones(1))
    return {"results": {"forward": tuple(tracer.results.get("forward", ()))}}


def taken(tracer):
    return {name: tuple(result) for name, result in tracer.results.items()}


if __name__ == "__main__":
    if WORLD > 1:
        store = dist.FileStore("store", WORLD)
        dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    found = {}
    for example in (first, second, third, plain, foreign):
        torch.manual_seed(0)
        model = Model()
        ddp_model = DistributedDataParallel(model) if WORLD > 1 else model
        found[example.__name__] = example(model, ddp_model)
    torch.save(found, f"found-{RANK}.pt")
    if WORLD > 1:
        dist.destroy_process_group()
