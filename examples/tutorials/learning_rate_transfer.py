"""Does my learning rate transfer to a wider model?

You tuned the learning rate on a small model. It transfers to a wide one only if an update changes
each activation by the same amount at every width. The coordinate check measures that in seconds.
"""

# %% [markdown]
# ## A model for every width
#
# The check needs a function that takes a width and returns a model, its optimizer, and the loss of a
# batch. Data must be the same at every width.

# %%
import torch
from torch import nn

import sonde

DATA = torch.Generator().manual_seed(0)
X = torch.randn(64, 16, generator=DATA)
Y = (X @ torch.randn(16, 4, generator=DATA)).sign()


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Linear(16, width, bias=False)
        self.hidden = nn.Linear(width, width, bias=False)
        self.readout = nn.Linear(width, 4, bias=False)
        for layer in (self.embed, self.hidden, self.readout):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def forward(self, x):
        return self.readout(self.hidden(self.embed(x).relu()).relu())


def loss_of(model, _step):
    return (model(X) - Y).square().mean()


def standard(width):
    model = Mlp(width)
    return model, torch.optim.Adam(model.parameters(), lr=1e-4), loss_of


# %% [markdown]
# ## Check

# %%
WIDTHS = (64, 128, 256, 512)
found = sonde.coord_check(standard, widths=WIDTHS)
print(found)
assert not found.is_stable

# %% [markdown]
# `slope` is the exponent with which a term grows with the width. Updates of `hidden` and `readout`
# grow: at twice the width, the same learning rate changes activations almost twice as much. The rate
# does not transfer.
#
# ## Scale by width
#
# muP divides the learning rates of hidden and output layers by the width:


# %%
def mup(width):
    model = Mlp(width)
    with torch.no_grad():
        model.readout.weight.mul_((WIDTHS[0] / width) ** 0.5)
    rates = {"embed": 1e-4, "hidden": 1e-4 * 64 / width, "readout": 1e-4 * 64 / width}
    groups = [{"params": getattr(model, k).parameters(), "lr": lr} for k, lr in rates.items()]
    return model, torch.optim.Adam(groups), loss_of


scaled = sonde.coord_check(mup, widths=WIDTHS)
print(scaled)

# %% [markdown]
# ## See it

# %%
from sonde.coordinates.matplotlib import plot

plot({"standard": found, "muP": scaled}, "learning_rate_transfer.png")

# %% [markdown]
# ![Terms of the check against width: in the first row two of them grow, in the second they are flat](../../docs/images/tutorials/learning_rate_transfer.png)
#
# The slopes of the updates of `hidden` and `readout` are near 0 now, and a rate tuned at width 64
# serves at 512. From a terminal: `sonde coord-check FILE.py:FUNCTION --plot FILE`. The method:
# [Reference model and coordinate check](../../docs/coordinate_check.md).
