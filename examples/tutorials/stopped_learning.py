"""Which layers stopped learning?

The loss is flat. Are all layers still changing, or only the last one? Compare the size of each
update with the size of its parameter, and count dead units.
"""

# %% [markdown]
# ## A model with a dead layer
#
# The bias of the second layer is so negative that its ReLU outputs only zeros. Nothing raises an
# error: the loss falls a little, because the last layer still learns.

# %%
import torch
from torch import nn

import sonde

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
with torch.no_grad():
    model[2].bias.fill_(-20)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

with sonde.watch(model, optimizer, every=5, name="stopped") as watch:
    watch.add_metric("update_ratio")
    watch.add_metric("dead_fraction", where=nn.ReLU)
    for _ in range(100):
        x = torch.randn(128, 16)
        loss = (model(x) - x[:, :4].abs()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.log(loss=loss)

# %% [markdown]
# ## Updates relative to parameters
#
# A healthy ratio is around 1e-3. Exactly 0 means that a layer gets no gradient:

# %%
run = sonde.open("runs/stopped")
ratios = run.metrics("*update_ratio")
late = ratios[ratios["step"] >= 50].groupby("module")["value"].median()
print(late.to_string(float_format="%.2g"))
assert late["0"] == 0
assert late["4"] > 0

# %% [markdown]
# Layers `0` and `2` have stopped; layer `4` still learns. Who blocks the gradient? The units that are
# zero for a whole step are dead:

# %%
dead = run.metrics("dead_fraction").groupby("module")["value"].max()
print(dead.to_string())
assert dead["3"] == 1
assert dead["1"] < 1

# %% [markdown]
# The ReLU `3` is dead: all of its 64 units. Everything before it is cut off from the loss.
#
# ## See it

# %%
run.plot.heatmap("update", "rms").savefig("stopped_updates.png", dpi=110)
run.plot.heatmap("output", "sparsity").savefig("stopped_sparsity.png", dpi=110)

# %% [markdown]
# ![Updates of all parameters over steps: only the last layer changes](../../docs/images/tutorials/stopped_updates.png)
#
# ![Share of zeros in every output: the second ReLU is all zeros](../../docs/images/tutorials/stopped_sparsity.png)
#
# ## What to do
#
# Fix the initialization of the layer before the dead ReLU, or use an activation without a flat side.
# The same two questions find frozen parameters (`requires_grad=False`), parameters missing from the
# optimizer, and learning rates that are too small for one group.
