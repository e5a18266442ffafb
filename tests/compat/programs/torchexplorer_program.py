"""A training that a user of TorchExplorer may have: prints the structure that was found as JSON."""

import json
import sys

import torch
import torchexplorer
from torch import nn
from torchexplorer.core import ModuleInvocationStructure


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x):
        hidden = torchexplorer.attach(self.fc1(x).relu(), self, "hidden")
        return self.fc2(hidden)


torch.manual_seed(0)
model = Model()
wrapper = torchexplorer.watch(model, log=["io", "params"], log_freq=1, backend="none")
before = wrapper.structure
for _ in range(int(sys.argv[1])):
    model(torch.randn(3, 4)).sum().backward()
structure = wrapper.structure
assert isinstance(structure, ModuleInvocationStructure)
print(json.dumps({"before": before, "nodes": len(structure.inner_graph.nodes)}))
