"""Traced tensors on a CUDA device: right values, and the training thread never waits for them."""

import pytest
import torch
from torch import nn

import sonde

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 64)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen += 1
        h = self.fc(x)
        h.mul_(2)
        state = {"h": h, "n": 3}
        return state["h"].sum()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().cuda()


def test_values_are_those_of_the_device_and_come_to_the_host(model):
    paths = ["forward.h", "forward.state", "forward.self.fc.weight", "forward.self.seen", "fc"]
    expected = []
    with sonde.trace(model, [*paths, "forward.h@grad"]) as trace:
        for n in range(20):
            x = torch.full((8, 64), float(n), device="cuda")
            plain = model.fc(x).detach()
            model(x).backward()
            expected.append(plain.cpu())
    found = trace.results
    # What the module returns is a tensor that the method then changes in place.
    assert found["forward.h"].iterations == [n for n in range(20) for _ in range(2)]
    for n, plain in enumerate(expected):
        assert torch.equal(found["forward.h"].values[2 * n], plain)
        assert torch.equal(found["forward.h"].values[2 * n + 1], plain * 2)
        assert torch.equal(found["forward.state"].values[n]["h"], plain * 2)
        assert found["forward.self.seen"].values[n + 1].tolist() == [n + 1.0] * 4
    assert found["forward.self.fc.weight"].iterations == [0]
    assert torch.equal(found["forward.self.fc.weight"].values[0], model.fc.weight.cpu())
    assert found["forward.h@grad"].iterations == [0]  # all ones, at each step
    assert all(v.device.type == "cpu" for v in found["forward.h"].values)


@pytest.mark.parametrize("reduce", [[], [lambda name, value, iteration: iteration]])
def test_the_training_thread_does_not_wait_for_the_device(model, reduce):
    x = torch.randn(8, 64, device="cuda")
    paths = ["forward.h", "forward.self.fc.weight"]
    with sonde.trace(model, paths, before_save=reduce) as trace:
        for _ in range(3):
            model(x)
        assert trace.flush(30)
        torch.cuda.synchronize()
        torch.cuda._sleep(int(2e9))  # about a second
        for _ in range(5):
            model(x + 1)
        is_busy = not torch.cuda.current_stream().query()
    assert is_busy, "whoever had waited would find it idle"
    assert trace.results["forward.self.fc.weight"].iterations == [0]


def test_values_larger_than_the_budget_are_refused(model):
    trace = sonde.trace(model, ["forward.h"], budget_bytes=1000)
    with pytest.warns(sonde.SondeWarning, match=r"2\.0 KiB"):
        model(torch.randn(8, 64, device="cuda"))
    trace.close(quiet=True)
    assert trace.refused == {"forward.h": 1}
