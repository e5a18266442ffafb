"""`sonde demo`: a small network learns to write while Sonde watches."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

    from sonde.demo.scenarios import Scenario, Trained

HELP = "train a small network for about a minute, then open the page"
GROUP = "Record"
EXAMPLES = (
    "sonde demo",
    "sonde demo --broken --no-view",
)

_START: Final = "\n\nDive 12, at dusk.\n"
_SAMPLE_LENGTH: Final = 420

_PYTHON: Final = """\
import sonde

run = sonde.open("{run}")
run.scalars("loss")
run.stats("blocks.*.mlp", kind="output", stat=["rms", "max_abs", "p99"])
run.stats("*.weight", kind="update", stat="rms", steps=(0, 100))
run.histogram("blocks.0.attn.qkv.weight", kind="param_grad")
run.exponents("blocks.3.mlp.down", kind="output_grad").counts
run.merge("blocks.*", kind="output", by="step")
run.sql("select name, max(max_abs) as largest from stats group by name order by largest desc")
"""


_IN_JAX: Final = {
    "blocks.*.mlp": "blocks.*.up",
    "*.weight": "*.kernel",
    "blocks.0.attn.qkv.weight": "blocks.0.qkv.kernel",
    "blocks.3.mlp.down": "blocks.3.down",
}
"""What modules and parameters are called in the network of `--jax`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broken", action="store_true", help="train one that ends in NaN")
    parser.add_argument("--jax", action="store_true", help="train in JAX, with flax.nnx")
    parser.add_argument("--steps", type=int, metavar="N", help="default: 400, or 80 if broken")
    parser.add_argument(
        "--every", type=int, metavar="N", help="record each N-th step; default: 10, or 1 if broken"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--dir", default="runs", help="folder of runs (default: runs)")
    parser.add_argument("--name", help="name of the run; the time if not given")
    parser.add_argument(
        "--no-view", action="store_true", help="end when the training has; serve no explorer"
    )


def run(arguments: argparse.Namespace) -> int:
    from sonde._errors import SondeError
    from sonde._require import require
    from sonde.cli import _text

    # Threads that keep a core busy while they wait for each other: 157 s instead of 25 s for 40
    # steps beside other work, 2 cores, 2026-11. Must be said before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if arguments.jax and arguments.broken:
        raise SondeError("`--broken` is for PyTorch. Leave out `--jax`.")
    try:
        for module in ("jax", "flax", "optax") if arguments.jax else ("torch",):
            require(module, extra="jax" if arguments.jax else "torch")
    except ImportError as error:
        raise SondeError(str(error)) from None
    from sonde.demo.scenarios import BROKEN, HEALTHY

    scenario = BROKEN if arguments.broken else HEALTHY
    console = _text.console()
    steps = scenario.steps if arguments.steps is None else arguments.steps
    if steps < 1:
        raise SondeError(f"`--steps` must be at least 1, got {steps}.")
    _introduce(console, scenario, steps)
    trained = _train(console, scenario, steps, arguments)
    if not arguments.broken:
        _head(console, "what it writes")
        console.print(trained.writes(_START, _SAMPLE_LENGTH).strip(), "\n")
    if trained.path is None:
        console.print("SONDE=off is set, so nothing was recorded.")
        return 0
    where = os.path.join(arguments.dir, trained.path.name)
    _show(where)
    _say_how_to_look(console, where, in_jax=arguments.jax)
    return _view(console, arguments)


def _introduce(console: Console, scenario: Scenario, steps: int) -> None:
    from sonde.kernels import c

    shape = scenario.shape
    print(
        f"A transformer of {shape.blocks} blocks, width {shape.width}, reads the logbook of a "
        f"probe in the sea, {steps:,} steps."
    )
    if scenario.name == "broken":
        print("Its learning rate and its initial weights are too large. Watch it go wrong.")
    if not c.available():
        print("Sonde was installed without a C compiler: tensors are read by plain torch.")
    console.print()


def _train(
    console: Console, scenario: Scenario, steps: int, arguments: argparse.Namespace
) -> Trained:
    from sonde.demo.progress import Steps

    if arguments.jax:
        from sonde.demo.jax.training import train
    else:
        from sonde.demo.torch.training import train

    with Steps(console, steps) as progress:
        trained = train(
            scenario,
            steps=steps,
            every=scenario.every if arguments.every is None else arguments.every,
            seed=arguments.seed,
            dir=arguments.dir,
            name=arguments.name,
            tell=progress.tell,
        )
    console.print()
    return trained


def _show(where: str) -> None:
    """What `sonde show` prints."""
    from sonde.cli import show

    parser = argparse.ArgumentParser()
    show.add_arguments(parser)
    show.run(parser.parse_args([where]))


def _head(console: Console, text: str) -> None:
    from rich.text import Text

    console.rule(Text(text, style="bold"), align="left", style="dim")


def _view(console: Console, arguments: argparse.Namespace) -> int:
    """The explorer, until it is stopped: for a person at a terminal. Others are told how."""
    from sonde._errors import SondeError
    from sonde.cli import view

    _head(console, "in a browser")
    if arguments.no_view or not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(f"sonde view {shlex.quote(arguments.dir)}")
        return 0
    parser = argparse.ArgumentParser()
    view.add_arguments(parser)
    try:
        return view.run(parser.parse_args(["--", arguments.dir]))
    except SondeError as error:  # the run is there all the same
        print(error)
        return 0


def _say_how_to_look(console: Console, where: str, *, in_jax: bool) -> None:
    _head(console, "in Python")
    text = _PYTHON
    for name, own in _IN_JAX.items() if in_jax else ():
        text = text.replace(f'"{name}"', f'"{own}"')
    print(text.format(run=where))
    if shutil.which("sonde") is None:
        folder = os.path.relpath(sys.prefix)
        folder = sys.prefix if folder.startswith("..") else folder
        print(f"The `sonde` command lives in {folder}: `source {folder}/bin/activate` first.")
