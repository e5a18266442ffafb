"""A training that a user of torchexplorer may have: prints its structure and counts as JSON."""

import json
import sys

import torch
import torchexplorer
from torch import nn
from torchexplorer.core import ModuleInvocationStructure

torch.manual_seed(0)
relu = nn.ReLU()
model = nn.Sequential(nn.Linear(10, 20), relu, nn.Linear(20, 2), relu)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
wrapper = torchexplorer.watch(
    model, log_freq=2, backend="none", sample_n=None, reject_outlier_proportion=0.0
)
for _ in range(int(sys.argv[1])):
    model(torch.randn(5, 10)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def totals(histogram):
    return [round(sum(counts)) for counts in histogram.history_bins]


graph, calls = wrapper.structure.inner_graph, []
for node in graph.nodes:
    if isinstance(node, ModuleInvocationStructure):
        found = node.module_metadata()
        own, shared = found.invocation_hists[node.invocation_id], found.shared_hists
        calls.append(
            {
                "name": f"{type(node.module).__name__} {node.invocation_id}",
                "size": [len(node.inner_graph.nodes), len(node.inner_graph.edges)],
                "times": own.output_hists[0].history_times,
                "input": totals(own.input_hists[0]),
                "output": totals(own.output_hists[0]),
                "params": {k: totals(h) for k, h in sorted(shared.param_hists.items())},
                "grads": {k: totals(h) for k, h in sorted(shared.param_grad_hists.items())},
            }
        )
size = [len(graph.nodes), len(graph.edges)]
print(json.dumps({"size": size, "calls": sorted(calls, key=str)}))
