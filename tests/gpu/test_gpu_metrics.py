"""Metrics on a CUDA device: the numbers of a CPU, and never a wait."""

import copy

import pytest
import torch
from torch import nn

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
