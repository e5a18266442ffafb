"""Did my refactoring change the numbers?

You rewrote a module. The loss curve looks the same, but is it? Record both versions with one seed
and compare the runs: `sonde.compare` names the first tensor and step that differ.
"""

# %% [markdown]
# ## Two versions
#
# The new version merges two activations into one call and, by mistake, uses the tanh approximation
# of GELU.

# %%
import torch
from torch import nn
from torch.nn import functional

import sonde


class Before(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 64)
        self.act = nn.GELU()
        self.down = nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class After(Before):
    def forward(self, x):
        return x + self.down(functional.gelu(self.up(x), approximate="tanh"))


def record(kind, name):
    torch.manual_seed(0)
    model = nn.Sequential(kind(), kind(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, name=name) as watch:
        for _ in range(10):
            x = torch.randn(32, 16)
            loss = (model(x) - x[:, :1]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)


record(Before, "before")
record(After, "after")

# %% [markdown]
# ## Compare

# %%
found = sonde.compare("runs/before", "runs/after")
print(found)
assert found.verdict == "different"
assert found.first is not None
assert found.first.step == 0

# %% [markdown]
# The runs differ from step 0 on, at the output of the first block's `down`: its input is what
# changed. `sonde diff runs/before runs/after` prints the same and exits with 1, so a CI job can run
# it.
#
# ## Fix it, and prove it


# %%
class Fixed(Before):
    def forward(self, x):
        return x + self.down(functional.gelu(self.up(x)))


record(Fixed, "fixed")
fixed = sonde.compare("runs/before", "runs/fixed")
print(fixed)
assert fixed.first is None

# %% [markdown]
# Every tensor that both runs record is bit-identical at every step. `act` is no longer a module that
# is called, and the comparison lists it as missing.
#
# ## See it

# %%
run = sonde.open("runs/before")
run.plot.compare("runs/after", kind="param", measure="distance").savefig("refactoring.png", dpi=110)

# %% [markdown]
# ![Distance between both runs per parameter and step](../../docs/images/tutorials/refactoring.png)
#
# The difference starts tiny and grows: a loss curve would show it after thousands of steps, if at
# all. For runs that must differ, such as other seeds, pass `twin=` to measure the noise:
# [Compare runs](../../docs/compare.md).
