"""One training that every library runs: 20 updates of 4 micro-batches in bfloat16 autocast,
clipped, with one validation; and the same as a plain loop."""

import torch
from torch import nn

import sonde

STEPS = 20
ACCUMULATED = 4
PER_EPOCH = 7
"""Updates per epoch: the checkpoint, after two epochs, lies at a border of epochs."""
VALIDATED_AT, SAVED_AT, KILLED_AT = 12, 14, 17
CLIP = 0.5


class Net(nn.Module):
    """Returns a dict with the loss, as models of transformers do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 1)

    def forward(self, x, labels):
        y = self.last(self.norm(self.first(x)).relu())
        return {"loss": nn.functional.mse_loss(y.float(), labels), "logits": y.detach()}


class Holder(nn.Module):
    """The network inside another module, as in a LightningModule."""

    def __init__(self):
        super().__init__()
        self.net = Net()


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def rows(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return [
        {"x": torch.randn(6, generator=generator), "labels": torch.randn(1, generator=generator)}
        for _ in range(n)
    ]


def training_rows():
    return rows(2 * ACCUMULATED * PER_EPOCH, seed=1)


def validation_rows():
    return rows(6, seed=2)


def loader(of):
    return torch.utils.data.DataLoader(of, batch_size=2)


def plain(model, net, folder, *, steps=STEPS, phases=None):
    """The run of a loop without any library."""
    optimizer = adam(model)
    batches, validation = list(loader(training_rows())), list(loader(validation_rows()))
    phases = phases or {"train": 1, "eval": 1}
    with sonde.watch(model, optimizer, phases=phases, dir=folder, name="plain") as watch:
        for step in range(steps):
            for k in range(ACCUMULATED):
                batch = batches[(step * ACCUMULATED + k) % len(batches)]
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = net(**batch)["loss"]
                (loss / ACCUMULATED).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            if step + 1 == VALIDATED_AT:
                model.eval()
                with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                    for batch in validation:
                        net(**batch)
                model.train()
    return sonde.open(watch.path)
