"""The smallest use of Sonde: watch a training, then ask what happened inside."""

import torch
from torch import nn

import sonde

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(256, 16)
y = x[:, :1] * x[:, 1:2]

with sonde.watch(model, optimizer, every=10) as watch:
    for _ in range(200):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.log(loss=loss)

run = sonde.open("runs/latest")
print(run.scalars("loss"))
print(run.stats("*", kind="output", stat=["rms", "sparsity", "p99"], steps=190))
