"""Is fp8 safe here?

fp8 halves memory traffic, but `float8_e4m3fn` holds magnitudes from 2⁻⁹ to 448. Which tensors of
your model would lose values? Train once in the format you use today, and compute from the recorded
sketches what each format would lose. No second training is needed.
"""

# %% [markdown]
# ## Record

# %%
import torch
from torch import nn

import sonde

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 8)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with sonde.watch(model, optimizer, every=20, name="fp8") as watch:
    for _ in range(100):
        x = torch.randn(256, 32)
        loss = (model(x) - x[:, :8].tanh()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.log(loss=loss)

# %% [markdown]
# ## What would be lost
#
# `Sketch.loss(format)` computes, from the bins, the share of values that would overflow, underflow
# to zero or become subnormal:

# %%
run = sonde.open("runs/fp8")
last = 80  # the last recorded step
print(f"{'tensor':28} {'underflow':>10} {'overflow':>10}")
lost = {}
for kind in ("output", "param", "output_grad", "param_grad"):
    for name, sketch in run.merge(kind=kind, steps=last, by="name").items():
        found = sketch.loss("float8_e4m3fn")
        lost[kind, name] = found
        print(f"{name:28} {found.underflow:10.1%} {found.overflow:10.1%}")

# %% [markdown]
# Activations and weights fit. Gradients do not: most of them are below 2⁻⁹ and become zero. This is
# why fp8 training scales tensors. A power of two moves the distribution without changing a digit:

# %%
worst = max(found.underflow for (kind, _), found in lost.items() if kind.endswith("grad"))
safe = max(found.underflow for (kind, _), found in lost.items() if kind == "output")
assert worst > 0.5 > safe

# %% [markdown]
# ## See it
#
# Exponents of a gradient against the range of three formats. Everything left of a format's range is
# lost:

# %%
formats = ["float8_e4m3fn", "float8_e5m2", "float16"]
run.plot.exponents("2.weight", "param_grad", last, formats=formats).savefig(
    "fp8_gradient.png", dpi=110
)
run.plot.exponents("2", "output", last, formats=formats).savefig("fp8_output.png", dpi=110)

# %% [markdown]
# ![Exponents of a gradient: most lie below the range of fp8](../../docs/images/tutorials/fp8_gradient.png)
#
# ![Exponents of an activation: nearly all lie within fp8](../../docs/images/tutorials/fp8_output.png)
#
# ## Decide
#
# | kind | here | do |
# |---|---|---|
# | activations, weights | within range | cast directly, or scale per tensor |
# | gradients | underflow | scale per tensor, or use `float8_e5m2` with a scale |
# | optimizer state | see `kind="optim"` | keep in float32 |
#
# Check several steps, not one: gradients shrink during training. `run.stats(..., stat="max_abs")`
# over all steps gives the scale you need. See also
# [Why did my loss become NaN?](nan_loss.py).
