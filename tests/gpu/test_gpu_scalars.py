"""Scalars, statistics and final weights on a CUDA device: right, and never a wait in the loop."""

import math

import pytest
import torch
from torch import nn

import sonde

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()


def scalars(path):
    with sonde.open(path, frame="arrow") as run:
        found = {}
        for row in run.scalars().to_pylist():
            found.setdefault(row["name"], {})[row["step"]] = row["value"]
        return found


def test_a_learning_rate_on_the_device_and_norms_are_recorded_without_waiting(tmp_path):
    model, x = small(), torch.ones(5, 4, device="cuda")
    rate = torch.tensor(0.25, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)
    watch = sonde.watch(model, optimizer, every=1, dir=tmp_path)
    norms = []

    def step():
        optimizer.zero_grad()
        model(x).square().sum().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
        optimizer.step()
        watch.log(loss=norms[-1], reduce="mean")
        watch.record("x", x)
        rate.mul_(0.5)

    step()
    watch.flush()
    torch.cuda.set_sync_debug_mode("error")  # whatever waits for the device is an error
    try:
        step()
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    watch.close()
    found = scalars(watch.path)
    assert found["lr"] == {0: 0.25, 1: 0.125, 2: 0.0625}
    expected = {i: pytest.approx(float(n), rel=1e-4) for i, n in enumerate(norms)}
    assert found["grad_norm/before_clip"] == expected
    assert found["grad_norm"] == {i: pytest.approx(0.01, rel=1e-3) for i in range(3)}
    with sonde.open(watch.path) as run:
        final = run.sketch("0.weight", kind="param", phase="final")
        assert final.norm == pytest.approx(float(model[0].weight.detach().norm()), rel=1e-5)
        assert run.sketch("./attach/x", step=1).count == 20


def test_the_scale_of_a_scaler_is_recorded(tmp_path):
    model, x = small(), torch.ones(5, 4, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0, growth_interval=1)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        for at in range(3):
            optimizer.zero_grad()
            scaler.scale(model(x).square().sum()).backward()
            if at == 1:
                model[0].weight.grad[0, 0] = math.inf
            scaler.step(optimizer)
            scaler.update()
        found = watch.metrics(stats="norm")
        assert found["gradient/0.weight/norm"] == pytest.approx(
            float(model[0].weight.grad.norm()), rel=1e-4
        )
    assert scalars(watch.path)["loss_scale"] == {0: 64.0, 1: 128.0, 2: 64.0}


def test_replays_of_a_captured_step_have_their_learning_rate(tmp_path):
    model, x = small(), torch.ones(5, 4, device="cuda")
    rate = torch.tensor(0.25, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=False)
        model(x).square().sum().backward()
        optimizer.step()

    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(3):
            graph.replay()
            rate.mul_(0.5)
    found = scalars(watch.path)["lr"]
    assert list(found.values())[-3:] == [0.25, 0.125, 0.0625]
