"""A training that a user of TensorTracer may have: prints what was traced as JSON."""

import json
import sys

import torch
from tensortrace import ModelTracer, stack_padded_tensors
from tensortrace.h5py_tracer import H5PYSaverCallback
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        hidden = self.fc(x)
        return hidden.tanh()


torch.manual_seed(0)
model = Model()
saver = H5PYSaverCallback("values.h5")
stacked = ModelTracer(
    model,
    ["forward", "forward.hidden"],
    post_gather_callbacks=[stack_padded_tensors],
    post_trace_callbacks=[stack_padded_tensors],
    gathering_interval=2,
)
saved = ModelTracer(model, ["forward.x"], post_gather_callbacks=[saver])
with stacked, saved:
    seen = [model(torch.randn(2, 3)) for _ in range(int(sys.argv[1]))]
saver.close()
print(
    json.dumps(
        {
            "iterations": stacked.results["forward"].iterations,
            "shape": list(stacked.results["forward.hidden"].values[0].shape),
            "traced": stacked.results["forward"].values[0].flatten(0, 1).tolist(),
            "seen": torch.stack(seen).tolist(),
        }
    )
)
