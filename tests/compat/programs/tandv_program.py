"""A training that a user of Track & Visualize may have: prints statistics that were read back."""

import json
import sys

import torch
from tandv.track.common import read_pickle
from tandv.track.torch import track
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
expected = []
with track(model, optimizer=optimizer, track_gradients=True) as tracker:
    for _ in range(int(sys.argv[1])):
        output = model(torch.randn(5, 4))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        tracker.step()
        expected.append(output.std().item())
frame = read_pickle(tracker.out_path)
meta = frame["metadata"]
rows = frame[(meta["name"] == "2") & (meta["tensor_type"] == "Activation")]
print(
    json.dumps(
        {
            "steps": [int(step) for step in rows["metadata", "step"]],
            "std": [float(value) for value in rows["scalar_stats", "std"]],
            "expected": expected,
        }
    )
)
