"""A training that a user of Track & Visualize may have: prints rows of its LogFrame as JSON.

Beside each number of the log is what torch says of the tensor, as tandv computes it.
"""

import contextlib
import io
import json
import sys

import torch
from tandv.track.common import read_pickle
from tandv.track.torch import track
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seen = {}


def note(step, kind, x):
    """Statistics and exponents by the definitions of tandv, for tensors where they hold."""
    x = x.detach().double()
    rm2 = x.square().mean().sqrt()
    exponents = torch.frexp(x).exponent.flatten().clamp(-17, 17)
    seen[f"{step} {kind}"] = {
        "mean": float(x.mean()),
        "std": float(x.std()),
        "mean_abs": float(x.abs().mean()),
        "max_abs": float(x.abs().max()),
        "min_abs": float(x.abs().min()),
        "rm2": float(rm2),
        "rm4": float((x / rm2).pow(4).mean().pow(0.25) * rm2),
        "exponents": torch.bincount(exponents + 17, minlength=35).tolist(),
    }


with contextlib.redirect_stdout(io.StringIO()), track(module=model) as tracker:
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        note(step, "Weights", model[0].weight)
        y = model(torch.randn(8, 6))
        note(step, "Activation", y)
        y.square().mean().backward()
        optimizer.step()
        tracker.step()

frame = read_pickle(tracker.out_path)
logged = {}
for _, row in frame.iterrows():
    name, kind = row["metadata", "name"], row["metadata", "tensor_type"]
    if (name, kind) in {("0", "Weights"), ("2", "Activation")}:
        stats = row["scalar_stats"].to_dict()
        counts = [int(n) for n in row["exponent_counts"]]
        logged[f"{row['metadata', 'step']} {kind}"] = {**stats, "exponents": counts}
print(json.dumps({"logged": logged, "expected": seen}))
