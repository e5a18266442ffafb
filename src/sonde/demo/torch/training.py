"""The training loop of the demo: a usual loop, with Sonde watching."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from sonde.demo.scenarios import Scenario, Trained
from sonde.demo.text import logbook
from sonde.demo.torch.transformer import Transformer
from sonde.watching import Watch, watch

TEXT_LENGTH = 400_000
VALIDATION_LENGTH = 20_000
TEMPERATURE = 0.6

Told = Callable[[int, float, float | None], None]
"""Called after each step: the step, its loss, and the loss on unseen text where it was taken."""


def train(
    scenario: Scenario,
    *,
    steps: int,
    every: int,
    seed: int,
    dir: str | os.PathLike[str],
    name: str | None,
    tell: Told,
) -> Trained:
    """Train the network of a scenario and record it. The same seed gives the same training."""
    torch.manual_seed(seed)
    text = _Text(logbook(TEXT_LENGTH), seed)
    model = Transformer(scenario.shape, len(text.characters))
    optimizer = _optimizer(scenario, model)
    kept = {"scenario": asdict(scenario), "steps": steps, "seed": seed}
    with watch(model, optimizer, every=every, dir=dir, name=name, config=kept) as watching:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = scenario.rate(step, steps)
            ids_BT, next_BT = text.batch(scenario)
            loss = _loss(model(ids_BT), next_BT)
            loss.backward()
            if scenario.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), scenario.clip_norm)
            optimizer.step()
            optimizer.zero_grad()
            watching.log(loss=loss, learning_rate=scenario.rate(step, steps))
            tell(step, loss.item(), _validated(scenario, step, steps, model, text, watching))
        return Trained(
            watching.path, lambda start, n: _write(model, text, start, n, scenario, seed)
        )


class _Text:
    """The logbook as numbers, one per character, in two parts: to learn from, and unseen."""

    def __init__(self, text: str, seed: int) -> None:
        self.characters = sorted(set(text))
        self._ids = {c: i for i, c in enumerate(self.characters)}
        self._seen, self._unseen = self.encode(text).split(
            [len(text) - VALIDATION_LENGTH, VALIDATION_LENGTH]
        )
        self._generator = torch.Generator().manual_seed(seed)

    def encode(self, text: str) -> Tensor:
        return torch.tensor([self._ids[c] for c in text])

    def batch(self, scenario: Scenario) -> tuple[Tensor, Tensor]:
        """Pieces of the text, and the same moved on by a character."""
        length = scenario.shape.context + 1
        starts = torch.randint(
            len(self._seen) - length, (scenario.batch, 1), generator=self._generator
        )
        pieces = self._seen[starts + torch.arange(length)]
        return pieces[:, :-1], pieces[:, 1:]

    def unseen(self, scenario: Scenario) -> tuple[Tensor, Tensor]:
        """The same pieces of the unseen part each time, twice as many as in a batch."""
        length = scenario.shape.context + 1
        starts = torch.arange(2 * scenario.batch)[:, None] * length
        pieces = self._unseen[starts + torch.arange(length)]
        return pieces[:, :-1], pieces[:, 1:]


def _optimizer(scenario: Scenario, model: Transformer) -> Optimizer:
    if scenario.optimizer == "sgd":
        return SGD(model.parameters(), lr=scenario.peak_rate, momentum=0.9)
    return AdamW(model.parameters(), lr=scenario.peak_rate, betas=(0.9, 0.99), weight_decay=0.1)


def _loss(scores_BTV: Tensor, next_BT: Tensor) -> Tensor:
    return functional.cross_entropy(scores_BTV.flatten(0, 1), next_BT.flatten())


def _validated(
    scenario: Scenario, step: int, steps: int, model: Transformer, text: _Text, watching: Watch
) -> float | None:
    """The loss on unseen text every so often, under a phase of its own."""
    each = scenario.validate_every
    if each is None or ((step + 1) % each and step + 1 != steps):
        return None
    model.eval()
    with watching.phase("validation"), torch.no_grad():
        ids_BT, next_BT = text.unseen(scenario)
        loss = _loss(model(ids_BT), next_BT)
        watching.log(loss=loss)
    model.train()
    return loss.item()


@torch.no_grad()
def _write(
    model: Transformer, text: _Text, start: str, length: int, scenario: Scenario, seed: int
) -> str:
    generator = torch.Generator().manual_seed(seed)
    ids_T = text.encode(start)
    for _ in range(length):
        scores_V = model(ids_T[None, -scenario.shape.context :])[0, -1] / TEMPERATURE
        drawn = torch.multinomial(scores_V.softmax(-1), 1, generator=generator)
        ids_T = torch.cat([ids_T, drawn])
    return "".join(text.characters[int(i)] for i in ids_T)
