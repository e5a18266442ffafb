"""A sink: a line of JSON for each step, in a file beside the run."""

import json

import torch

import sonde


class Lines(sonde.Sink):
    def start(self, run):
        self.file = (run.path.parent / f"{run.name}.jsonl").open("w")

    def write(self, readings):
        for reading in readings:
            self.file.write(json.dumps({"step": reading.step, **reading.numbers}) + "\n")

    def close(self, reason):
        self.file.close()


model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sink = Lines(stats=["rms"], kinds="gradients")
with sonde.watch(model, optimizer, every=1, name="sink", sinks=[sink]) as watch:
    for _ in range(20):
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
