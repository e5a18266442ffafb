"""Does training stay the same when a model gets wider? The coordinate check of an MLP, twice.

`standard` uses the same learning rate at every width. There, what an update does to a hidden or
output layer grows with its width: each coordinate adds up as many small changes as the layer has
inputs. `mup` divides the learning rates of these layers by the width (and starts the output layer
smaller), and the change of each coordinate stays the same.

    python examples/coordinates.py
    sonde coord-check examples/coordinates.py:standard
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import sonde

WIDTHS = (128, 256, 512, 1024)
BASE = 128

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(64, 16, generator=GENERATOR)
Y = (X @ torch.randn(16, 4, generator=GENERATOR)).sign()


class Mlp(nn.Module):
    """Three layers without biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width, bias=False)
        self.hidden = nn.Linear(width, width, bias=False)
        self.readout = nn.Linear(width, 4, bias=False)
        for layer in (self.embed, self.hidden, self.readout):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.hidden(self.embed(x).relu()).relu())


def loss_of(model: nn.Module, _step: int) -> Tensor:
    """The loss of a batch: the same one for every width and step."""
    return (model(X) - Y).square().mean()


Made = tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module, int], Tensor]]


def standard(width: int) -> Made:
    model = Mlp(width)
    return model, torch.optim.Adam(model.parameters(), lr=1e-4), loss_of


def mup(width: int) -> Made:
    model = Mlp(width)
    with torch.no_grad():
        model.readout.weight.mul_((BASE / width) ** 0.5)
    rates = {"embed": 1e-4, "hidden": 1e-4 * BASE / width, "readout": 1e-4 * BASE / width}
    groups = [{"params": getattr(model, k).parameters(), "lr": lr} for k, lr in rates.items()]
    return model, torch.optim.Adam(groups), loss_of


if __name__ == "__main__":
    for make in (standard, mup):
        print(f"\n{make.__name__}\n")
        print(sonde.coord_check(make, widths=WIDTHS, seeds=2))
