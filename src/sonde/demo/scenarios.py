"""What the demo trains: one network that learns well, and one that goes wrong in a known way.

`HEALTHY` is a common recipe: normalised blocks, AdamW, a warm-up, a cosine, clipped gradients.

`BROKEN` makes four mistakes that often come together:

1. The blocks have no normalisation (`Shape.is_normalised`).
2. The initial weights are twice too large (`Shape.init_scale`).
3. The learning rate rises towards 2.0, several times what SGD with momentum bears here.
4. Gradients are not clipped.

What follows, seen with seeds 0 to 5: the loss falls for some forty steps, while the
warm-up is still low. Then, within ten steps, gradients and updates grow a thousandfold and the loss
rises. Between steps 45 and 60 activations overflow: the first NaN and infinite values appear in the
forward pass, then in all gradients. One step later the optimizer has carried them into all weights.
Whatever is meant to notice such things can be held against this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the network, and how it starts."""

    width: int
    blocks: int
    heads: int
    context: int
    is_normalised: bool = True
    init_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Trained:
    """What became of a training."""

    path: Path | None
    """The run directory; None when Sonde is off."""
    writes: Callable[[str, int], str]
    """Goes on from a text with so many characters of its own."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A network and how it is trained."""

    name: str
    shape: Shape
    steps: int
    every: int
    """Steps between two that are recorded."""
    batch: int
    optimizer: Literal["adamw", "sgd"]
    peak_rate: float
    warmup_steps: int
    is_decayed: bool
    clip_norm: float | None
    validate_every: int | None

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step: a linear warm-up, then a cosine down to a twentieth."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        if not self.is_decayed:
            return self.peak_rate * warm
        fall = 0.5 * (1 + math.cos(math.pi * step / steps))
        return self.peak_rate * warm * (0.05 + 0.95 * fall)


HEALTHY: Final = Scenario(
    name="healthy",
    shape=Shape(width=128, blocks=4, heads=4, context=128),
    steps=400,
    every=10,
    batch=12,
    optimizer="adamw",
    peak_rate=3e-3,
    warmup_steps=40,
    is_decayed=True,
    clip_norm=1.0,
    validate_every=50,
)

BROKEN: Final = Scenario(
    name="broken",
    shape=Shape(width=128, blocks=4, heads=4, context=64, is_normalised=False, init_scale=2.0),
    steps=80,
    every=1,
    batch=8,
    optimizer="sgd",
    peak_rate=2.0,
    warmup_steps=150,
    is_decayed=False,
    clip_norm=None,
    validate_every=None,
)
