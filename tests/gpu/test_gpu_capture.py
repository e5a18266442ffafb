"""Capture on a CUDA device: right numbers, in every mode, and never a wait."""

import copy
import math
import os

import numpy as np
import pytest
import torch
from torch import nn

import sonde
from sonde.capture.torch.compile import hooks
from sonde.capture.torch.rows.host import HostTable, table_for
from sonde.kernels import layout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width, inplace=True):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.ReLU(inplace)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=32, inplace=True):
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.blocks = nn.Sequential(Block(width, inplace), Block(width, inplace))
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Net().to(DEVICE)


def adam(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def batch(i, n=24):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(n, 16, generator=generator).to(DEVICE)


def step(called, optimizer, x):
    optimizer.zero_grad(set_to_none=True)
    loss = called(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def numbers(x):
    """Count, sum and mean square in float64."""
    x = x.detach().double().flatten()
    return x.numel(), float(x.sum()), float(x.square().sum()), float(x.abs().max())


def expected(model, optimizer, x):
    """What a step sees, from a copy in float64 that is trained like the model."""
    model, state = copy.deepcopy(model).double(), copy.deepcopy(optimizer.state_dict())
    twin = type(optimizer)(model.parameters())
    twin.load_state_dict(state)
    for group in twin.param_groups:
        group.update(fused=False, capturable=False, foreach=False)
    for known in twin.state.values():
        known["step"] = known["step"].cpu()
    found, kept = {}, {}

    def see(name):
        def hook(module, args, out):
            found[f"{name}/output/0"] = numbers(out)
            out.register_hook(lambda g: found.__setitem__(f"{name}/output_grad/0", numbers(g)))

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(see(name or "."))
    for name, p in model.named_parameters():
        path, _, own = name.rpartition(".")
        found[f"{path}/param/{own}"] = numbers(p)
        kept[name] = p.detach().clone()
    twin.zero_grad()
    model(x.double()).square().mean().backward()
    for name, p in model.named_parameters():
        path, _, own = name.rpartition(".")
        found[f"{path}/param_grad/{own}"] = numbers(p.grad)
    twin.step()
    for name, p in model.named_parameters():
        path, _, own = name.rpartition(".")
        found[f"{path}/update/{own}"] = numbers(p - kept[name])
        for key in ("exp_avg", "exp_avg_sq"):
            found[f"{path}/optim/{own}/{key}"] = numbers(twin.state[p][key])
    return found


def assert_equal(memory, at, wanted, *, only=None, rel=2e-3):
    found = memory.at(at)
    keys = wanted.keys() if only is None else {k for k in wanted if only(k)}
    assert keys <= found.keys(), sorted(keys - found.keys())[:5]
    for name in keys:
        sketch, (n, total, squares, largest) = found[name], wanted[name]
        assert sketch.count == n, (at, name, sketch.count, n)
        size = math.sqrt(squares / n)
        tolerance = rel * size + 1e-9
        assert abs(sketch.mean - total / n) <= tolerance, (at, name)
        assert abs(sketch.rms - size) <= tolerance, (at, name)
        assert abs(sketch.max_abs - largest) <= 20 * rel * largest + 1e-9, (at, name)


def test_the_fused_kernel_is_used():
    assert table_for(torch.device(DEVICE)).kernel == "cuda"


def heads_of(packed):
    """Queries, keys and values of each head, as views of what one projection made."""
    return [x for part in packed.unbind(2) for x in part.unbind(2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("batch", "length", "heads", "width"),
    [(2, 7, 3, 64), (1, 1, 1, 8), (3, 700, 2, 32), (1, 5, 2, 256)],
)
def test_heads_are_read_in_one_go_as_they_lie(dtype, batch, length, heads, width):
    packed = torch.randn(batch, length, 3, heads, width, device=DEVICE).to(dtype)
    packed[0, 0, 0, 0, 0] = torch.nan
    views = heads_of(packed)
    table, host = table_for(torch.device(DEVICE)), HostTable()
    for rows in (table, host):
        rows.ensure(len(views))
    assert all(map(table.takes, views))
    indices = np.arange(len(views))
    table.add_many(indices, views)
    for i, x in enumerate(views):
        host.add(i, x.cpu())
    mine, its = table.take().sketches(indices), host.take().sketches(indices)
    assert np.array_equal(mine.counts, its.counts)
    assert np.array_equal(mine.extrema, its.extrema)
    assert np.allclose(mine.sums, its.sums, rtol=1e-9)
    assert np.array_equal(mine.bin_ids, its.bin_ids)
    assert np.array_equal(mine.bin_counts, its.bin_counts)


@pytest.mark.parametrize("lengths", [(1,), (5, 0, 4096), (70_000, 3, 4097, 1_000_003), (33,) * 16])
def test_several_tensors_are_read_by_one_launch(lengths):
    formats = [torch.float32, torch.bfloat16, torch.float16]
    tensors = [
        torch.randn(n + 1, device=DEVICE).to(formats[i % 3])[i % 2 :][:n]  # some begin in a vector
        for i, n in enumerate(lengths)
    ]
    tensors[0][0] = torch.inf
    table, host = table_for(torch.device(DEVICE)), HostTable()
    for rows in (table, host):
        rows.ensure(len(tensors))
    given = [
        (
            str(x.dtype).split(".")[1],
            x.data_ptr(),
            len(x),
            table._pages.bases[0] + i * layout.ROW_BYTES,
        )
        for i, x in enumerate(tensors)
    ]
    table._kernel.several(given, stream=torch.cuda.current_stream().cuda_stream)
    for i, x in enumerate(tensors):
        if len(x):
            host.add(i, x.cpu())
    indices = np.arange(len(tensors))
    mine, its = table.take().sketches(indices), host.take().sketches(indices)
    assert np.array_equal(mine.counts, its.counts)
    assert np.array_equal(mine.extrema, its.extrema)
    assert np.allclose(mine.sums, its.sums, rtol=1e-9, equal_nan=True)
    assert np.array_equal(mine.bin_ids, its.bin_ids)
    assert np.array_equal(mine.bin_counts, its.bin_counts)


def test_views_that_are_less_even_are_read_one_by_one():
    table = table_for(torch.device(DEVICE))
    x = torch.randn(4, 6, 64, device=DEVICE)
    assert table.takes(x[:, :3])
    assert table.takes(x[:, ::2])
    assert not table.takes(x[:, :, 1:33])  # begins within a vector
    assert not table.takes(x[:, :, :30])  # runs end within a vector
    assert not table.takes(x[:2, ::2, :32][:, :2])  # two distances
    assert not table.takes(x[:, :, ::2])


@pytest.mark.parametrize("fused", [False, True])
def test_every_kind_is_right(watching, model, fused):
    optimizer = adam(model, fused=fused)
    watch, memory = watching(model, optimizer)
    wanted = []
    for i in range(3):
        x = batch(i)
        wanted.append(expected(model, optimizer, x) if i else None)
        step(model, optimizer, x)
    watch.close()
    for i in (1, 2):
        assert_equal(memory, i, wanted[i])


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_twenty_steps_of_full_capture_never_wait(watching, model, how):
    optimizer = adam(model, fused=True)
    watch, memory = watching(model, optimizer)
    called = torch.compile(model, fullgraph=True) if how == "compiled" else model
    x = batch(0)

    def train():
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = called(x).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        watch.log(loss=loss)

    for _ in range(3):
        train()
    watch.flush()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    watch.close()
    assert len({at for at, _ in memory.scalars}) == 23
    recorded = {at for at, _ in memory.steps}
    dropped = sum(n for n in memory.counted("dropped").values())
    assert len(recorded) + dropped == 23
    assert not memory.counted("failed")


def test_time_on_the_device_is_taken_without_a_wait(watching, model):
    optimizer = adam(model)
    watch, memory = watching(model, optimizer, every=4)
    x = batch(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(40):
            step(model, optimizer, x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    step(model, optimizer, x)
    cost = watch._session.device_cost
    watch.close()
    assert not memory.counted("failed")
    assert 0 < cost["other_step_s"] < 1
    assert 0 < cost["recorded_step_s"] < 1


def test_a_scaler_shows_unscaled_gradients_and_skipped_steps(watching, model):
    optimizer = adam(model, fused=True)
    watch, memory = watching(model, optimizer)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**40)
    x = batch(0)
    norms = []
    for _ in range(6):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        norms.append(model.head.weight.grad.double().norm().item() / scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    watch.close()
    assert memory.counted("update_skipped")
    for at, norm in enumerate(norms):
        found = memory.at(at).get("head/param_grad/weight")
        if found is not None and math.isfinite(norm):
            assert found.norm == pytest.approx(norm, rel=1e-3)


def run_compiled(watching, model, mode):
    """Thirteen steps, and what every third of them should have recorded."""
    optimizer = adam(model)
    watch, memory = watching(model, optimizer, every=3)
    called = torch.compile(model, fullgraph=True, mode=mode)
    torch._dynamo.utils.counters.clear()
    wanted = {}
    for i in range(13):
        x = batch(i)
        if i and i % 3 == 0:
            wanted[i] = expected(model, optimizer, x)
        torch.compiler.cudagraph_mark_step_begin()
        step(called, optimizer, x)
        if i == 0:
            n_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    watch.close()
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == n_graphs
    assert {at for at, _ in memory.steps} == {0, 3, 6, 9, 12}
    return memory, wanted


MODES = ["default", "reduce-overhead", "max-autotune"]


@pytest.mark.parametrize("mode", MODES)
def test_compiled_code_is_recorded_in_every_mode(watching, model, mode):
    memory, wanted = run_compiled(watching, model, mode)
    for at, values in wanted.items():
        # Older compilers cannot trace a hook on a tensor that is written to: they leave it out.
        assert_equal(
            memory, at, values, only=lambda k: hooks.TRACES_HOOKS or "output_grad" not in k
        )


@pytest.mark.parametrize("mode", MODES)
def test_gradients_in_compiled_code_in_every_mode(watching, monkeypatch, mode):
    monkeypatch.setattr(hooks, "TRACES_HOOKS", True)  # nothing is written to in this model
    torch.manual_seed(0)
    torch._dynamo.reset()
    memory, wanted = run_compiled(watching, Net(inplace=False).to(DEVICE), mode)
    for at, values in wanted.items():
        assert_equal(memory, at, values)


def warm_up(model, optimizer, n=3):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(n):
            step(model, optimizer, batch(100 + i))
    torch.cuda.current_stream().wait_stream(side)


@pytest.mark.parametrize("every", [1, 3])
def test_each_replay_of_a_cuda_graph_is_a_record_of_its_own(watching, model, every):
    optimizer = adam(model)
    watch, memory = watching(model, optimizer, every=every)
    warm_up(model, optimizer)
    static = batch(0).clone()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(static).square().mean()
        loss.backward()
    wanted = {}
    for i in range(3, 13):
        static.copy_(batch(i))
        if i % every == 0:
            wanted[i] = expected(model, optimizer, batch(i))
        graph.replay()
        watch.log(loss=loss)
        optimizer.step()
    watch.close()
    assert sorted(at for at, _ in memory.scalars) == list(range(3, 13))
    for at, values in wanted.items():
        assert_equal(memory, at, values)
    heads = [memory.at(at)["head/output/0"].mean for at in wanted]
    assert len(set(heads)) == len(heads)
    assert {at for at, _ in memory.steps if at >= 3} == set(wanted)


def test_a_step_ends_with_the_replay_when_the_optimizer_is_in_the_graph(watching, model):
    optimizer = adam(model, capturable=True)
    watch, memory = watching(model, optimizer)
    warm_up(model, optimizer)
    static = batch(0).clone()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        model(static).square().mean().backward()
        optimizer.step()
    wanted = {}
    for i in range(3, 8):
        static.copy_(batch(i))
        wanted[i] = expected(model, optimizer, batch(i))
        graph.replay()
    watch.close()
    for at, values in wanted.items():
        assert_equal(memory, at, values)


def test_graphed_callables_keep_their_taps(watching, model):
    optimizer = adam(model)
    watch, memory = watching(model, optimizer)
    for i in range(2):
        step(model, optimizer, batch(i))
    example = torch.randn(24, 32, device=DEVICE, requires_grad=True)
    model.blocks[0] = torch.cuda.make_graphed_callables(model.blocks[0], (example,))
    wanted = {}
    for i in range(2, 7):
        x = batch(i)
        plain = copy.deepcopy(model)
        plain.blocks[0] = Block(32).to(DEVICE)
        plain.blocks[0].load_state_dict(model.blocks[0].state_dict())
        twin = adam(plain)
        twin.load_state_dict(optimizer.state_dict())
        wanted[i] = expected(plain, twin, x)
        step(model, optimizer, x)
    watch.close()
    for at, values in wanted.items():
        assert_equal(memory, at, values)


def test_torch_is_as_it_was_when_nobody_watches(watching, model):
    before = torch.cuda.CUDAGraph.replay, torch.cuda.make_graphed_callables
    watch, _ = watching(model, adam(model))
    assert torch.cuda.CUDAGraph.replay is not before[0]
    watch.close()
    assert (torch.cuda.CUDAGraph.replay, torch.cuda.make_graphed_callables) == before


def test_training_is_the_same_bit_by_bit(model, tmp_path):
    twin = copy.deepcopy(model)
    ends = []
    for each, is_watched in ((model, True), (twin, False)):
        optimizer = adam(each, fused=True)
        if is_watched:
            sonde.watch(each, optimizer, every=1, dir=tmp_path, log="all")
        losses = []
        for i in range(10):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = each(batch(i)).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        ends.append((torch.stack(losses), [p.detach() for p in each.parameters()]))
    sonde.unwatch(model)
    assert torch.equal(ends[0][0], ends[1][0])
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True))


def linears(n, width=16):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(n))).to(DEVICE)
    for linear in model:
        nn.init.orthogonal_(linear.weight)
    return model


def test_a_step_of_more_sites_than_rows_is_recorded_whole(watching):
    model = linears(400)
    optimizer = adam(model, fused=True)
    watch, memory = watching(model, optimizer, log="default")
    x = batch(0)
    step(model, optimizer, x)
    watch.flush()
    wanted = expected(model, optimizer, x)
    step(model, optimizer, x)
    watch.close()
    assert memory.counted("sliced")
    assert not memory.counted("dropped")
    assert not memory.counted("record_lost")
    assert len(wanted) > table_for(torch.device(DEVICE)).slice_rows
    assert_equal(memory, 1, wanted)


def in_use():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ,
    reason="the driver counts the memory of all processes: run this one without -n",
)
def test_memory_of_the_device_does_not_grow_with_modules_and_is_given_back(watching):
    model = linears(2000)
    optimizer = adam(model, foreach=True)
    x = batch(0)
    for _ in range(3):
        step(model, optimizer, x)
    watching(linears(1), log="default")[0].close()  # what is loaded once
    before = in_use()
    watch, memory = watching(model, optimizer, log="default")
    most = before
    for _ in range(4):
        step(model, optimizer, x)
        most = max(most, in_use())
    assert watch._session.capture.recorder.memory["device_bytes"] < 50e6
    watch.close()
    assert not memory.counted("failed")
    assert (most - before) / 2000 < 50e3
    assert in_use() - before < 32e6


def test_a_graph_that_outlives_its_watch_writes_nowhere_else(watching, model):
    optimizer = adam(model)
    watch, _ = watching(model, optimizer)
    warm_up(model, optimizer)
    static = batch(0).clone()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        model(static).square().mean().backward()
    graph.replay()
    watch.close()
    torch.cuda.empty_cache()
    others = [torch.full((1 << 20,), 7, device=DEVICE) for _ in range(16)]
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert all(bool((x == 7).all()) for x in others)
