"""A metric: the share of units of each ReLU that are zero for a whole batch."""

import torch

import sonde


@sonde.metric("dead_units", where="re:relu", reduce="max")
def dead_units(output):
    return (output <= 0).all(dim=0).float().mean()


model = torch.nn.Sequential()
model.add_module("fc", torch.nn.Linear(8, 32))
model.add_module("relu", torch.nn.ReLU())
model.add_module("head", torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with sonde.watch(model, optimizer, every=5, name="metric") as watch:
    watch.add_metric(dead_units)
    for _ in range(20):
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print(sonde.open("runs/metric").metrics("dead_units"))
