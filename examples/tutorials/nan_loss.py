"""Why did my loss become NaN?

A transformer trains well for a while, then the loss is NaN. Which layer broke first, and why? You
need a recorded run of every step, one table and two pictures.
"""

# %% [markdown]
# ## The broken training
#
# A small model whose learning rate grows without bound. Record every step: a NaN spreads to all
# layers within one step, so the steps before it matter.

# %%
import torch
from torch import nn

import sonde

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=1.12)

with sonde.watch(model, optimizer, every=1, name="nan-loss") as watch:
    for _ in range(60):
        x = torch.randn(128, 16)
        loss = (model(x) - x[:, :4] * x[:, 4:8]).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        watch.log(loss=loss)

# %% [markdown]
# ## Where it began
#
# `nans` and `infs` are exact counts. Ask for the first step at which any tensor has one, and list
# the tensors in the order in which the model computes them:

# %%
run = sonde.open("runs/nan-loss")
first = run.sql("""
    select step, name, kind, nans, pos_infs + neg_infs as infs
    from stats where nans + pos_infs + neg_infs > 0
    order by step limit 8
""")
print(first.to_string())
broken = int(first["step"].iloc[0])
assert broken > 10

# %% [markdown]
# `sonde show runs/nan-loss` prints the same, and the page lists these rows first.
#
# ## What came before
#
# The step of the NaN shows the victim. The cause is in the steps before it: values that grow by
# orders of magnitude. Gradients grow first in the last layers, where the loss is:

# %%
norms = run.stats("*", kind="param_grad", stat="norm", steps=(broken - 6, broken - 1))
print(norms.pivot_table(index="name", columns="step", values="norm").to_string(float_format="%.3g"))
by_step = norms.groupby("step")["norm"].max()
assert by_step.iloc[-1] > 10 * by_step.iloc[0]

# %% [markdown]
# ## See it
#
# The heatmap has one row per layer and one column per step; cells with NaN or Inf are red.

# %%
run.plot.heatmap("param_grad", "rms").savefig("nan_loss_heatmap.png", dpi=110)
run.plot.lines(["loss", "lr"]).savefig("nan_loss_scalars.png", dpi=110)

# %% [markdown]
# ![Gradients of all layers over steps; the last columns are red](../../docs/images/tutorials/nan_loss_heatmap.png)
#
# ![Loss and learning rate over steps](../../docs/images/tutorials/nan_loss_scalars.png)
#
# The learning rate is recorded by itself. Here the gradients explode once it passes a threshold,
# some steps before the loss is NaN: lower the peak, clip gradients, or add warmup.
#
# ## Next time
#
# - Leave `every=10` on. When a loss becomes NaN, restart from the last checkpoint with `every=1`.
# - `watch.log(note="...")` marks steps on the page.
# - With mixed precision, look at `max_abs` against the range of the format: see
#   [Is fp8 safe here?](fp8.py).
