"""Steps that are not recorded run the code of an unwatched model; those that are, nearly so."""

import re

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, 2 * width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.SiLU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(self.act(self.gate(y)) * self.up(y))


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def whole(model, backend):
    return torch.compile(model, backend=backend)


def by_block(model, backend):
    for block in model.blocks:
        block.compile(backend=backend)
    return model


class Graphs:
    """A backend that notes what would be generated: forward and backward, decomposed and parted by
    what decides which tensors are kept, as the default backend does."""

    def __init__(self):
        self.without, self.with_taps = [], []
        self._backend = aot_autograd(
            fw_compiler=self._note,
            bw_compiler=self._note,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
        )

    def __call__(self, graph, inputs):
        return self._backend(graph, inputs)

    def _note(self, graph, _inputs):
        kept = self.with_taps if "sonde" in graph.code else self.without
        kept.append(canonical(str(graph.graph)))
        return make_boxed_func(graph.forward)


def canonical(text):
    """A graph, whatever the order of its inputs and of what it keeps: hooks see a module's inputs
    before the module sees its weights."""
    names = {}

    def rename(found):
        return names.setdefault(found[0], f"input_{len(names)}")

    lines = text.splitlines()
    inputs = [line for line in lines if "= placeholder[" in line]
    others = [re.sub(r"primals_\d+", rename, line) for line in lines if line not in inputs]
    results = re.findall(r"\w+", others.pop())
    inputs = [re.sub(r"primals_\d+", rename, line) for line in inputs]
    return (sorted(inputs), others, sorted(results))


def losses(model, call, schedule, watching, steps=4):
    """Losses of a few steps under autocast; unwatched without a schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = watching(model, optimizer, every=schedule)[0] if schedule is not None else None
    data = torch.Generator().manual_seed(1)
    found = []
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16):
            out = call()(torch.randn(16, 32, generator=data))
        loss = out.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    if watch is not None:
        watch.close()
    return found


def never(_step):
    return False


def trained(watching, compile_, backend, schedule):
    """Losses and weights; compiled after the watch begins, as users do."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net()
    made = []

    def call():
        if not made:
            made.append(compile_(model, backend))
        return made[0]

    found = losses(model, call, schedule, watching)
    return found, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("compile_", [whole, by_block])
def test_code_without_taps_is_that_of_an_unwatched_model(watching, compile_):
    """The same operations in the same order, inputs, and tensors kept for backward."""
    plain, watched = Graphs(), Graphs()
    trained(watching, compile_, plain, None)
    trained(watching, compile_, watched, never)
    assert plain.without
    assert watched.with_taps
    assert sorted(watched.without) == sorted(plain.without)


@pytest.mark.slow  # for this, real code has to be generated
@pytest.mark.parametrize("compile_", [whole, by_block])
def test_steps_that_are_not_recorded_are_the_same_bits(watching, compile_):
    expected, weights = trained(watching, compile_, "inductor", None)
    found, after = trained(watching, compile_, "inductor", never)
    assert found == expected
    assert all(map(torch.equal, after, weights))


@pytest.mark.slow
def test_recorded_steps_differ_by_less_than_the_format_rounds(watching):
    """A tensor that is recorded is written to memory in 16 bits, where fused code may have kept
    32: one rounding of bfloat16 (2**-9) more or less per operation."""
    expected, _ = trained(watching, whole, "inductor", None)
    found, _ = trained(watching, whole, "inductor", 1)
    assert found == pytest.approx(expected, rel=2**-8)
