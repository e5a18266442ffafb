"""Metrics on a CUDA device: the numbers of a CPU, and never a wait."""

import copy

import pytest
import torch
from torch import nn

from sonde.capture.torch.metrics.replay import Replays

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.attn(x, x, x, need_weights=False)[0]
        # Without the tanh, the norm would leave the gradients of biases before it to rounding.
        return self.head(self.drop(self.norm(x.tanh().mT).mT))


def record(watching, device, steps=3, **options):
    """Every metric there is, on a small model."""
    torch.manual_seed(0)
    model = Net().to(device)
    model.drop.p = 0.0  # devices draw different numbers
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watch, memory = watching(model, optimizer, reference="init", **options)
    watch.add_metric("mean", torch.mean)
    watch.add_metric("rows", lambda x: x.norm(dim=-1), kind="output_grad")
    watch.add_metric("all", lambda x: x.flatten()[:100], reduce=lambda x: {"top": x.max()})
    watch.add_metric("l2", lambda a, b: (a - b).norm(dim=-1), against="reference")
    for name in (
        *("update_ratio", "update_grad_cosine", "stable_rank", "effective_rank", "dead_fraction"),
        *("channel_max", "per_sample_grad_norm", "rcc", "attention", "gradient_pipeline"),
    ):
        watch.add_metric(name)
    data = [torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(i)) for i in range(steps)]
    data = [x.to(device) for x in data]
    return model, optimizer, watch, memory, data


def train(model, optimizer, watch, x):
    loss = model(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    watch.log(loss=loss)


def test_numbers_are_those_of_the_cpu(watching):
    found = []
    for device in ("cpu", "cuda"):
        model, optimizer, watch, memory, data = record(watching, device)
        for x in data:
            train(model, optimizer, watch, x)
        found.append([watch.metrics(step) for step in range(3)])
        watch.close()
        assert memory.counted("failed") == {}
    for mine, its in zip(*found, strict=True):
        assert set(mine) == set(its)
        assert len(mine) > 200
        for key, value in mine.items():
            assert its[key] == pytest.approx(value, rel=2e-2, abs=2e-3), key


def test_nothing_waits_for_the_device(watching):
    model, optimizer, watch, memory, data = record(watching, "cuda", steps=6)
    train(model, optimizer, watch, data[0])  # what is made once may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        for x in data[1:]:
            train(model, optimizer, watch, x)
        watch.flush()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    watch.close()
    assert memory.counted("failed") == {}
    assert memory.counted("record_lost") == {}
    assert all((step, "train") in memory.scalars for step in range(6))


def test_training_and_random_numbers_are_untouched(watching):
    def result(watched):
        model, optimizer, watch, _, data = record(watching, "cuda", every=1 if watched else 1000)
        model.drop.p = 0.5
        torch.cuda.manual_seed(1)
        for x in data:
            train(model, optimizer, watch, x)
        watch.close()
        return copy.deepcopy(model.state_dict()), torch.cuda.get_rng_state()

    (plain, numbers), (watched, others) = result(False), result(True)
    assert torch.equal(numbers, others)
    for name, value in plain.items():
        assert torch.equal(value, watched[name]), name


def test_a_reference_on_the_cpu_gives_the_same(watching):
    found = []
    for device in (None, "cpu"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch, _ = watching(model, optimizer)
        watch.set_reference("init", device=device)
        watch.add_metric("l2", lambda a, b: (a - b).norm(dim=-1), against="reference")
        for i in range(2):
            x = torch.randn(6, 8, generator=torch.Generator().manual_seed(i)).cuda()
            model(x).square().mean().backward()
            optimizer.step()
        found.append(watch.metrics())
        watch.close()
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (3, 2, 3, 4, 3)])
@pytest.mark.parametrize("is_dense", [False, True])
def test_heads_are_sketched_as_they_are(watching, sizes, is_dense):
    """Wherever their tensors lie from step to step, and however many sequences there are."""

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(64, 192)
            self.kept = {}

        def forward(self, x):
            heads = [y.unflatten(-1, (4, 16)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)]
            if is_dense:
                heads = [y.contiguous() for y in heads]
            out = nn.functional.scaled_dot_product_attention(*heads)
            for name, y in zip(("query", "key", "value", "output"), (*heads, out), strict=True):
                for i, head in enumerate(y.detach().unbind(1)):
                    self.kept[f"head_{i}.{name}"] = head.double()
            return out

    torch.manual_seed(0)
    model = Attends().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watch, memory = watching(model, optimizer)
    watch.add_metric("attention")
    kept, held = [], []
    for step, size in enumerate(sizes):
        held.append(torch.empty(1000 * step + 1, device="cuda"))  # so that memory is elsewhere
        model(torch.randn(size, 40, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        kept.append(dict(model.kept))
    watch.close()
    assert memory.counted("failed") == {}
    for step, expected in enumerate(kept):
        found = {n: s for n, s in memory.at(step).items() if "head_" in n}
        assert len(found) == len(expected) == 16
        for name, sketch in found.items():
            x = next(x for slot, x in expected.items() if name.endswith(slot))
            assert sketch.count == x.numel()
            assert sketch.sum == pytest.approx(float(x.sum()), rel=1e-6, abs=1e-6)
            assert sketch.sum_sq == pytest.approx(float(x.square().sum()), rel=1e-6)
            assert (sketch.min, sketch.max) == (float(x.min()), float(x.max()))


POWER = 2.0
CALLS = []


def counted(x):
    CALLS.append(1)
    return x.mean()


def with_power(x):
    return x.abs().pow(POWER).mean()


FIXED = {
    "mean": torch.mean,
    "largest": lambda x: x.abs().amax(),
    "rows": lambda x: x.norm(dim=-1),
    "positive": lambda x: x > 0,
    "first": lambda x: x[..., 0, :],
    "one": lambda x: x.flatten()[3],
}
FREE = {
    "counted": counted,
    "item": lambda x: x.sum().item(),
    "masked": lambda x: x[x > 0].mean(),
    "noise": lambda x: torch.rand_like(x).mean(),
    "dict": lambda x: {"a": x.mean(), "b": 2.0},
    "broken": lambda x: x.undefined(),
}


def attentive(watching, *, free, steps=6, recipes=True, sizes=(6,), every=1):
    """A model of four like blocks with attention, trained with metrics of both sorts."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True) for _ in range(4))
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watch, memory = watching(model, optimizer, every=every)
    if not recipes:
        watch._session.observer.asker.recipes.follow = lambda *_: None
    for name, fn in (FIXED | FREE if free else FIXED).items():
        watch.add_metric(name, fn, reduce="max" if name == "largest" else "mean")
    watch.add_metric("gradient_mean", torch.mean, kind="output_grad")
    watch.add_metric("attention")
    torch.cuda.manual_seed(1)
    for step in range(steps):
        for i, size in enumerate(sizes):
            draws = torch.Generator().manual_seed(step * 10 + i)
            x = torch.randn(size, 5, 16, generator=draws).cuda()
            with torch.autocast("cuda", torch.bfloat16):
                model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    numbers = [watch.metrics(step) for step in range(steps)]
    recorded = watch._session.observer.asker.recipes
    made = 0 if not recipes else len(recorded._recipes)
    watch.close()
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    return numbers, memory, made, weights, torch.cuda.get_rng_state()


@pytest.mark.filterwarnings("ignore:recording .*broken:sonde.SondeWarning")
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("sizes", [(6,), (4, 4, 1)])
def test_metrics_that_are_replayed_say_what_they_would_say(watching, free, sizes):
    """Whatever stands beside them: what waits, draws numbers, counts, or is broken."""
    replayed = attentive(watching, free=free, sizes=sizes)
    called = attentive(watching, free=free, sizes=sizes, recipes=False)
    assert replayed[2] >= 4
    for mine, its in zip(replayed[0], called[0], strict=True):
        assert mine == pytest.approx(its, rel=1e-5, nan_ok=True)
        assert len(mine) > 300
    for name, value in called[3].items():
        assert torch.equal(value, replayed[3][name]), name
    assert torch.equal(replayed[4], called[4])
    assert set(replayed[1].counted("failed")) == set(called[1].counted("failed"))


@pytest.mark.filterwarnings("ignore:recording .*broken:sonde.SondeWarning")
def test_a_function_that_may_do_something_else_next_time_is_called_each_time(watching):
    CALLS.clear()
    attentive(watching, free=True)
    n = len(CALLS)
    CALLS.clear()
    attentive(watching, free=True, recipes=False)
    assert n == len(CALLS) > 100


def test_a_constant_that_changes_is_followed(watching, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch, _ = watching(model, optimizer)
    watch.add_metric("power", with_power)
    x = torch.randn(4, 8, device="cuda")
    for step in range(6):
        if step == 3:
            monkeypatch.setitem(globals(), "POWER", 3.0)
        with watch.paused(), torch.no_grad():
            expected = model(x).abs().pow(2.0 if step < 3 else 3.0).mean().item()
        model(x).sum().backward()
        optimizer.step()
        found = watch.metrics(step)
        assert found["activation/2/power"] == pytest.approx(expected, rel=1e-5)
    watch.close()


def test_what_cannot_be_recorded_leaves_the_device_as_it_was():
    """A recording that fails half-way, as one that nobody foresaw would."""
    recipes = Replays(lambda error: pytest.fail(repr(error)))
    x = torch.randn(4, 8, device="cuda")

    def waits(given):
        given.sum().item()
        return [given.sum()], None

    torch.cuda.manual_seed(3)
    before = torch.rand(5, device="cuda")
    torch.cuda.manual_seed(3)
    for _ in range(4):
        assert recipes.follow("waits", waits, (x,)) is None
    assert torch.equal(torch.rand(5, device="cuda"), before)
    assert nn.functional.dropout(x).shape == x.shape
    for _ in range(3):
        found = recipes.follow("sum", lambda given: ([given.sum()], 7), (x,))
    assert found[1] == 7
    assert torch.equal(found[0][0], x.sum())


def test_the_memory_of_recipes_is_given_back():
    recipes = Replays(lambda error: pytest.fail(repr(error)))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    x = torch.randn(1 << 22, device="cuda")
    for _ in range(3):
        recipes.follow("sort", lambda given: ([given.sort().values.sum()], None), (x,))
    assert torch.cuda.memory_reserved() > before
    recipes.forget()
    del x
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before
