"""A statistic: the crest factor, the largest magnitude of a tensor over its RMS.

See it on the page with `sonde view --load examples/extending/statistic.py`.
"""

import torch

import sonde
from sonde.sketch import statistic


@sonde.statistic(sql="{max_abs} / nullif({rms}, 0)", label="crest factor")
def crest(sketches):
    return statistic("max_abs")(sketches) / statistic("rms")(sketches)


if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, name="statistic"):
        for _ in range(20):
            model(torch.randn(32, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = sonde.open("runs/statistic")
    print(run.stats("*", kind="output", stat=["max_abs", "rms", "crest"]))
    print(run.sql("select name, avg(crest) from stats group by name order by name"))
