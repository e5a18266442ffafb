"""A training that a user of TorchWatcher may have: prints all that is logged as JSON."""

import json
import sys

import torch
from neptune_torchwatcher import TENSOR_STATS, TorchWatcher
from torch import nn


class Run:
    def __init__(self):
        self.logged = {}

    def log_metrics(self, data, step):
        self.logged.setdefault(step, {}).update(data)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = Run()
names = ["mean", "std", "norm", "min", "max", "var", "abs_mean"]
expected = {}
with TorchWatcher(model, run, track_layers=[nn.Linear], tensor_stats=names) as watcher:
    for step in range(int(sys.argv[1])):
        output = model(torch.randn(8, 6))
        output.retain_grad()
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        watcher.watch(step=step, track_parameters=True, prefix="train")
        seen = {
            "activations/2": output,
            "gradients/2": output.grad,
            "parameters/0/weight": model[0].weight,
        }
        expected[step] = {
            f"train/model_internals/{place}/{name}": TENSOR_STATS[name](x).item()
            for place, x in seen.items()
            for name in names
        }
print(json.dumps({"logged": run.logged, "expected": expected}))
