"""Inside a model and its loop: named tensors, a validation phase, a selection, own schedule."""

import torch
from torch import Tensor, nn

import sonde


class Attention(nn.Module):
    """One head. `sonde.attach` gives the scores a name; without a watch it does nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = sonde.attach(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, "scores")
        return scores.softmax(dim=-1) @ v


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 32), Attention(32), nn.LayerNorm(32), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
x = torch.randn(64, 10, 4)
seen, unseen = x[:48], x[48:]

watch = sonde.watch(
    model,
    optimizer,
    log=["output", "param_grad", "attach", "attach_grad"],
    exclude=nn.LayerNorm,
    every=[(0, 20), (20, 1000, 20)],  # each of the first twenty steps, then every twentieth
    config={"task": "mean of a sequence"},
)
for step in range(100):
    model.train()
    loss = nn.functional.mse_loss(model(seen), seen.mean(1, keepdim=True).expand_as(seen))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    watch.log(loss=loss)
    if step % 20 == 19:
        model.eval()
        with watch.phase("validation"), torch.no_grad():
            target = unseen.mean(1, keepdim=True).expand_as(unseen)
            watch.log(loss=nn.functional.mse_loss(model(unseen), target))
watch.close()

run = sonde.open(watch.path)
print(run.scalars("loss", phase="validation"))
print(run.stats("1", kind="attach", stat=["rms", "max_abs"], steps=(80, 100)))
print(run.stats("1", kind="attach", stat=["rms", "max_abs"], phase="validation"))
