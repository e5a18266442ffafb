"""Model tracers: `sonde.trace` with iterations that begin at 1 and results in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from torch import nn

from sonde.compat.tensortrace.callbacks import GlobalVariableResult, on_lists
from sonde.tracing.callbacks import BeforeSave
from sonde.tracing.wiring import Trace, trace

T = TypeVar("T")
OnValues = Callable[..., object]
_BOTH: Final = ("train", "eval")


class VariableGroup:
    """Variables that are traced in the same way, and what was found of them."""

    def __init__(
        self,
        paths: str | Sequence[str],
        trace_interval: int = 1,
        gather_interval: int = 1,
        pre_save_callbacks: Sequence[BeforeSave] = (),
        pre_gather_callbacks: Sequence[OnValues] = (),
        post_gather_callbacks: Sequence[OnValues] = (),
        post_trace_callbacks: Sequence[OnValues] = (),
        mode: Literal["train", "eval"] | Sequence[str] = "train",
    ) -> None:
        self.paths = [paths] if isinstance(paths, str) else list(paths)
        self._options = {
            "every": trace_interval,
            "gather_every": gather_interval,
            "before_save": list(pre_save_callbacks),
            "before_gather": [on_lists(callback) for callback in pre_gather_callbacks],
            "after_gather": [on_lists(callback) for callback in post_gather_callbacks],
            "after_trace": [on_lists(callback) for callback in post_trace_callbacks],
            "phase": mode,
        }
        self._trace = Trace.inert()

    @property
    def results(self) -> Mapping[str, GlobalVariableResult]:
        """By name: `iterations`, `ranks`, `values`. On rank 0 those of all ranks."""
        found = self._trace.results.items()
        return {name: GlobalVariableResult(r.iterations, r.ranks, r.values) for name, r in found}

    @property
    def current_iteration(self) -> int:
        """How many times the model has been called."""
        return self._trace.iteration

    def start(self, model: nn.Module) -> None:
        """Begin to trace."""
        options: dict[str, Any] = self._options
        self._trace = trace(model, self.paths, into="memory", step=1, **options)

    def stop(self, *, quiet: bool) -> None:
        """Trace no more, and gather what is left."""
        self._trace.close(quiet=quiet)


Variable = VariableGroup
"""What the original calls it."""


class ModelTracer:
    """Traces variables of a model inside a `with` block.

    `variables` are paths, to which the other arguments apply; or one or more `Variable`.
    """

    def __init__(
        self,
        model: nn.Module,
        variables: str | Variable | Sequence[str | Variable],
        trace_interval: int = 1,
        gathering_interval: int = 1,
        pre_save_callbacks: Sequence[BeforeSave] = (),
        pre_gather_callbacks: Sequence[OnValues] = (),
        post_gather_callbacks: Sequence[OnValues] = (),
        post_trace_callbacks: Sequence[OnValues] = (),
        eval_only: bool = False,
        train_only: bool = False,
    ) -> None:
        if eval_only and train_only:
            raise AssertionError("`eval_only` and `train_only` exclude each other. Pass one.")
        several = [variables] if isinstance(variables, str | Variable) else list(variables)
        paths = [path for path in several if isinstance(path, str)]
        self.model = model
        self.variables = [given for given in several if isinstance(given, Variable)]
        if paths:
            own = Variable(
                paths,
                trace_interval,
                gathering_interval,
                pre_save_callbacks,
                pre_gather_callbacks,
                post_gather_callbacks,
                post_trace_callbacks,
                mode="eval" if eval_only else "train" if train_only else _BOTH,
            )
            self.variables.append(own)

    @property
    def results(self) -> dict[str, GlobalVariableResult]:
        """The results of all variables, by name."""
        return {name: found for each in self.variables for name, found in each.results.items()}

    @property
    def current_iteration(self) -> int:
        """How many times the model has been called."""
        return max((each.current_iteration for each in self.variables), default=0)

    def __enter__(self) -> Self:
        for each in self.variables:
            each.start(self.model)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for each in self.variables:
            each.stop(quiet=kind is not None)


def trace_model(
    model: Callable[..., T], variables: Sequence[str | Variable], *args: object, **kwargs: object
) -> tuple[T, ModelTracer]:
    """Call the model once with its variables traced. Returns its output and the tracer."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
    with ModelTracer(model, variables) as tracer:
        output = model(*args, **kwargs)
    return output, tracer
