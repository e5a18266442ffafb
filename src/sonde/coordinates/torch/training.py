"""Trains a model at several widths for a few steps, and compares what training did to each.

def make(width):
    model = Mlp(width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model, optimizer, lambda model, step: loss_fn(model(x), y)

print(sonde.coord_check(make, widths=(64, 128, 256, 512)))
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor, nn

from sonde._errors import SondeError
from sonde.capture.leaves import leaves
from sonde.coordinates.model import TERMS, TOLERANCE, Coordinates, Term, of_values
from sonde.metrics.torch.rcc import feature_dim
from sonde.store import open_run
from sonde.watching import watch

Make = Callable[[int], tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module, int], Tensor]]]


def coord_check(
    make: Make,
    *,
    widths: Sequence[int] = (128, 256, 512, 1024),
    steps: int = 3,
    seeds: int = 1,
    where: object = None,
    dir: str | os.PathLike[str] | None = None,
    name: str = "coord-check",
    tolerance: float = TOLERANCE,
    progress: Callable[[str], None] = lambda _text: None,
) -> Coordinates:
    """Check whether updates change activations by the same amount at every width.

    Args:
        make: Given a width, returns a model, its optimizer, and a function of model and step that
            returns the loss of a batch. Batches must be the same for every width.
        widths: Widths to train, at least two.
        steps: Updates before the check.
        seeds: How often each width is trained, with seeds 0, 1, ...; values are averaged.
        where: Which modules are checked; by default those with parameters of their own.
        dir: Folder to keep the runs in, `<name>-<width>-<seed>`, to be looked at as any other.
        name: What the runs are called.
        tolerance: How far a slope may be from 0 to count as stable.
        progress: Told what is being done.

    Raises:
        SondeError: If there are fewer than two widths, or `make` does not return what it should.
    """
    if len(set(widths)) < 2 or min(widths) < 1:
        raise SondeError(f"`widths` must be two widths or more, got {list(widths)}.")
    if steps < 1 or seeds < 1:
        raise SondeError(f"`steps` and `seeds` must be at least 1, got {steps} and {seeds}.")
    values: dict[tuple[str, Term], list[list[float]]] = {}
    with ExitStack() as stack:
        folder = Path(dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="sonde-")))
        for i, width in enumerate(sorted(widths)):
            for seed in range(seeds):
                progress(f"width {width}" + (f", seed {seed}" if seeds > 1 else ""))
                found = _train(make, width, seed, steps, where, folder, name)
                for key, value in found.items():
                    several = values.setdefault(key, [[] for _ in widths])
                    several[i].append(value)
    means = {
        key: [sum(s) / len(s) if s else float("nan") for s in each] for key, each in values.items()
    }
    return of_values(sorted(widths), steps, means, tolerance=tolerance)


def _train(
    make: Make, width: int, seed: int, steps: int, where: object, folder: Path, name: str
) -> dict[tuple[str, Term], float]:
    """Terms of each module after that many updates, per coordinate."""
    torch.manual_seed(seed)
    model, optimizer, loss_of = _made(make, width)
    sizes: dict[str, int] = {}
    hooks = [m.register_forward_hook(_Size(sizes, path)) for path, m in model.named_modules()]
    watched = watch(
        model,
        optimizer,
        every=1,
        log="activations",
        dir=folder,
        name=f"{name}-{width}-{seed}",
        config={"width": width, "seed": seed},
        reference="init",
    )
    with watched:
        watched.add_metric("rcc", where=where)
        for step in range(steps + 1):
            loss = loss_of(model, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watched.log(loss=loss)
    for hook in hooks:
        hook.remove()
    if watched.path is None:
        raise SondeError("SONDE=off is set, so nothing can be checked.")
    with open_run(watched.path, frame="arrow") as run:
        rows = run.metrics("rcc/*", steps=steps, missing="ok").to_pylist()
    order = {path: i for i, path in enumerate(sizes)}
    found: dict[tuple[str, Term], float] = {}
    for row in sorted(rows, key=lambda r: order.get(r["module"], 0)):
        term = row["name"].removeprefix("rcc/")
        if term in TERMS:
            found[row["module"], term] = row["value"] / sizes[row["module"]] ** 0.5
    return found


def _made(
    make: Make, width: int
) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module, int], Tensor]]:
    made = make(width)
    if (
        not isinstance(made, tuple)
        or len(made) != 3
        or not isinstance(made[0], nn.Module)
        or not isinstance(made[1], torch.optim.Optimizer)
        or not callable(made[2])
    ):
        raise SondeError(
            f"For a width, a model, its optimizer and a function (model, step) -> loss must be "
            f"made; got {type(made).__name__}."
        )
    return made


class _Size:
    """How many coordinates a module's output has."""

    def __init__(self, sizes: dict[str, int], path: str) -> None:
        self._sizes = sizes
        self._path = path

    def __call__(self, module: nn.Module, _args: object, output: object) -> None:
        found = leaves(output, Tensor, 1)
        if found and found[0][1].dim():
            x = found[0][1]
            self._sizes[self._path] = x.shape[feature_dim(module, x)]
