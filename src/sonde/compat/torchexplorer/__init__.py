"""The names of torchexplorer on the engine of Sonde: `setup`, `watch`, `attach`.

import sonde.compat.torchexplorer as torchexplorer

torchexplorer.watch(model, log_freq=1, backend="standalone")  # the page, at localhost:5000

A step is a backward pass, as in torchexplorer. `sonde.watch(model, optimizer)` counts updates.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import torch
from torch import nn

from sonde import _endings
from sonde.capture.active import attach as attach_tensor
from sonde.capture.launch import launched
from sonde.capture.torch.backwards import BackwardSteps
from sonde.compat.torchexplorer import core as core
from sonde.compat.torchexplorer.core import RecordedStructure
from sonde.sinks.sink import Sink
from sonde.watching import Watch
from sonde.watching import watch as watch_model

__all__ = ["LIGHTNING_EPOCHS", "StructureWrapper", "attach", "setup", "watch"]

TimeLog = tuple[str, Callable[[Any, int], float]]
T = TypeVar("T")

LIGHTNING_EPOCHS: Final[TimeLog] = ("epoch", lambda module, _step: module.current_epoch)

_KINDS: Final = {
    "io": ("input", "output", "attach"),
    "io_grad": ("input_grad", "output_grad", "attach_grad"),
    "params": ("param",),
    "params_grad": ("param_grad",),
}
_BACKENDS: Final = ("wandb", "standalone", "none")
_CHARTS: Final = count()


class StructureWrapper(RecordedStructure):
    """What `watch` returns: the structure of the model, its watch, and how to end both."""

    def __init__(self, module: nn.Module, recorded: Watch, bins: int) -> None:
        super().__init__(module, recorded, bins)
        self.watch = recorded
        self.address: str | None = None
        self._endings: list[Callable[[], None]] = []

    def on_close(self, end: Callable[[], None]) -> None:
        """Call this when the wrapper is closed; the last one given comes first."""
        self._endings.append(end)

    def close(self) -> None:
        """Take every hook off the model, end the run, and stop serving it."""
        while self._endings:
            self._endings.pop()()
        atexit.unregister(self.close)


def setup(ulimit: int = 50000) -> None:
    """Raise the limit of open files, as far as this process may. Call it before `wandb.init()`."""
    import resource

    if getattr(sys.modules.get("wandb"), "run", None) is not None:
        raise ValueError("Call `torchexplorer.setup()` before `wandb.init()`.")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ulimit, max(ulimit, hard)))
    except (ValueError, OSError):  # only root may raise the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def attach(tensor: T, parent: object, name: str) -> T:
    """Record a tensor inside a forward under a name. Returns it. Without a watch, that is all."""
    del parent  # the module that is being called
    return attach_tensor(tensor, name)


def watch(
    module: nn.Module,
    log: Sequence[str] = ("io", "io_grad", "params", "params_grad"),
    log_freq: int = 500,
    ignore_io_grad_classes: Sequence[type] = (),
    disable_inplace: bool = False,
    bins: int = 20,
    sample_n: int | None = 100,
    reject_outlier_proportion: float = 0.1,
    time_log: TimeLog | None = None,
    delay_log_multi_backward: bool = False,
    backend: Literal["wandb", "standalone", "none"] = "wandb",
    standalone_dir: str = "./torchexplorer_standalone",
    standalone_port: int = 5000,
    verbose: bool = True,
    *,
    delay_log_multibackward: bool | None = None,
    reject_outlier_propertion: float | None = None,
) -> StructureWrapper:
    """Record a module at every `log_freq`-th backward pass, and show it as `backend` says.

    `sample_n` and `reject_outlier_proportion` have no effect: all values are counted. `bins` is
    that of the histograms of `wrapper.structure`. docs/migration.md says what else differs.
    """
    del sample_n, reject_outlier_proportion, reject_outlier_propertion
    if backend not in _BACKENDS:
        raise ValueError(f"`backend` must be one of {', '.join(_BACKENDS)}, got {backend!r}.")
    if unknown := [name for name in log if name not in _KINDS]:
        raise ValueError(f"`log` takes {', '.join(_KINDS)}, got {unknown[0]!r}.")
    if disable_inplace:
        for each in module.modules():
            if hasattr(each, "inplace"):
                setattr(each, "inplace", False)  # noqa: B010  # no attribute of every module
    kinds = [kind for name in log for kind in _KINDS[name]] or ["output"]
    folder, sinks = _destination(backend, standalone_dir, kinds, bins)
    recorded = watch_model(
        module,
        every=log_freq,
        log=kinds,
        exclude=_exclusions(module, tuple(ignore_io_grad_classes)) if log else _NOTHING,
        dir=folder,
        sinks=sinks,
        final_parameters=False,
        hyperparameters=False,
    )
    wrapper = StructureWrapper(module, recorded, bins)
    _end_steps(wrapper, module, time_log, waits=delay_log_multibackward or delay_log_multi_backward)
    if backend == "standalone":
        _serve(wrapper, folder, standalone_port, is_told=verbose)
    elif backend == "wandb":
        _chart(wrapper)
    atexit.register(wrapper.close)
    return wrapper


_NOTHING: Final = {"output": lambda _path, _module: True}
"""Leaves out every tensor, so that only the structure is recorded: `log=[]`."""


def _exclusions(module: nn.Module, classes: tuple[type, ...]) -> object:
    """No gradients of calls of these very classes, and of what is in them."""
    tops = [path for path, each in module.named_modules() if type(each) in classes]
    if not tops:
        return None

    def is_ignored(path: str, _module: object) -> bool:
        return any(not top or path == top or path.startswith(f"{top}.") for top in tops)

    return {"input_grad": is_ignored, "output_grad": is_ignored}


def _destination(
    backend: str, standalone_dir: str, kinds: Sequence[str], bins: int
) -> tuple[str, list[Sink]]:
    """The folder of the run, and its sinks."""
    if backend == "standalone":
        return standalone_dir, []
    if backend == "none":
        folder = tempfile.mkdtemp(prefix="torchexplorer-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder, []
    if getattr(sys.modules.get("wandb"), "run", None) is None:
        raise ValueError("Call `wandb.init()` before `torchexplorer.watch(..., backend='wandb')`.")
    from sonde.sinks.wandb import WandB

    return "runs", [WandB(histograms="*", kinds=kinds, bins=bins)]


def _end_steps(
    wrapper: StructureWrapper, module: nn.Module, time_log: TimeLog | None, *, waits: bool
) -> None:
    recorded = wrapper.watch

    def end() -> None:
        if time_log is not None and recorded.is_recording:
            unit, time_of = time_log
            with torch.no_grad():
                recorded.log({unit: time_of(module, recorded.current_step or 0)})
        recorded.step()

    steps = BackwardSteps(module, end, waits=waits)
    wrapper.on_close(lambda: recorded.close(_endings.of_process()))
    wrapper.on_close(steps.close)


def _serve(wrapper: StructureWrapper, folder: str, port: int, *, is_told: bool) -> None:
    """Serve the folder until the wrapper is closed or, after the program, interrupted."""
    if wrapper.watch.path is None or launched(None, None).rank:
        return
    from sonde.notebook.kernel_server import KernelServer

    server = KernelServer(str(Path(folder).resolve()), port=port, is_open=True)
    wrapper.address = f"http://localhost:{server.port}"
    wrapper.on_close(server.close)

    def end() -> None:
        wrapper.watch.close(_endings.of_process())
        if is_told:
            print(f"Still serving at {wrapper.address}. Press Ctrl-C to stop.", flush=True)

    if is_told:
        print(f"Serving `{folder}` at {wrapper.address}", flush=True)
    server.outlive(end)


def _chart(wrapper: StructureWrapper) -> None:
    """When the watch is closed, log its report to W&B as `explorer_chart_0` and so on."""
    name, path = f"explorer_chart_{next(_CHARTS)}", wrapper.watch.path
    if path is None:
        return

    def log_report() -> None:
        import wandb

        from sonde.store.reading.run import open_run

        wrapper.watch.flush()
        with tempfile.TemporaryDirectory() as folder, open_run(path) as run:
            report = Path(folder, f"{name}.html")
            run.to_html(report)
            if wandb.run is not None:
                wandb.run.log({name: wandb.Html(str(report))}, commit=False)

    wrapper.on_close(log_report)
