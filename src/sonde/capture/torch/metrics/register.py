"""From what `watch.add_metric` and `watch.set_reference` are given to what the observer does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import nn

from sonde._errors import SondeError
from sonde._signals import pass_on
from sonde.capture.numbers.metric_request import place_selector, requested
from sonde.capture.plan import Every, Schedule, Selector, schedule_of
from sonde.capture.torch.metrics.attention_stats import AttentionStats
from sonde.capture.torch.metrics.coordinate_check import CoordinateCheck
from sonde.capture.torch.metrics.gradient_stages import GradientStages
from sonde.capture.torch.metrics.observer import Observer
from sonde.capture.torch.metrics.reference import Reference
from sonde.metrics.torch.functions import BUILT_IN


def add_metric(
    observer: Observer,
    name: str | Callable[..., object],
    fn: Callable[..., object] | None,
    *,
    kind: str | tuple[str, ...] | None,
    where: object,
    reduce: object,
    every: Every | None,
    against: str | None,
) -> None:
    """Have the observer ask a metric: a function, or one that is known by name.

    Raises:
        SondeError: There is no such metric, or something about it is wrong.
    """
    schedule = None if every is None else schedule_of(every)
    if fn is None and isinstance(name, str) and name in INSTRUMENTS:
        INSTRUMENTS[name](observer, place_selector(where), schedule)
        _warn_of_nothing(observer, name, where, place_selector(where))
        return
    metric, usual = requested(
        name,
        fn,
        kind=kind,
        reduce=reduce,
        against=against,
        built_in=BUILT_IN,
        others=INSTRUMENTS,
    )
    where = usual if where is None else where
    metric = replace(metric, where=place_selector(where), every=schedule)
    if metric.against and observer.reference is None:
        raise SondeError(
            f"The metric `{metric.name}` compares with a reference, and there is none. "
            f"Call watch.set_reference(model) first."
        )
    if observer.has(metric):
        raise SondeError(
            f"There is a metric `{metric.name}` of {', '.join(metric.kinds)} already. "
            f"Give this one another name."
        )
    observer.add(metric)
    _warn_of_nothing(observer, metric.name, where, metric.where)


def _warn_of_nothing(observer: Observer, name: str, where: object, wants: Selector | None) -> None:
    """Warn if a pattern matches no module and no parameter of the model."""
    structure = observer.capture.structure
    structure.refresh()
    places = [(path, module()) for path, module in structure.modules]
    places += [(named.full, named.module()) for named in structure.parameters]
    try:
        is_anywhere = wants is None or any(wants(path, module) for path, module in places)
    except Exception as error:
        pass_on(error)
        raise SondeError(f"`where` of the metric `{name}` raised {error!r}.") from error
    if not is_anywhere:
        paths = [path for path, _ in structure.modules if path]
        observer.capture.troubles.concern(
            "metric_nowhere",
            f"The metric `{name}` is computed nowhere: `where={where!r}` matches no module and no "
            f"parameter. Paths look like: {', '.join(paths[:5]) or '(only the root)'}.",
            name,
        )


def set_reference(
    observer: Observer,
    model: object,
    *,
    device: str | torch.device | int | None = None,
    run: bool = True,
) -> None:
    """Compare with this model, or with a copy of the watched one as it is now ("init")."""
    if model is None:
        observer.compare_with(None)
        return
    capture = observer.capture
    root = capture.root
    if root is None:
        raise SondeError("The watched model is gone; there is nothing to compare.")
    is_own = False
    if isinstance(model, str):
        if model != "init":
            raise SondeError(f"`reference` must be a model or 'init', got {model!r}.")
        model, is_own = _copied(root), True
    if not isinstance(model, nn.Module):
        raise SondeError(f"A reference must be a torch.nn.Module, got {type(model).__name__}.")
    if model is root or model is capture.model:
        raise SondeError(
            "The watched model cannot be its own reference. Give a copy: copy.deepcopy(model)."
        )
    if device is not None:
        model = model.to(device)

    def is_awake() -> bool:
        if capture.is_closed:
            return False
        phases = capture.phases
        return phases.records_training or capture.steps.wants(phases.forced or capture.steps.phase)

    made = Reference(model, root, capture.troubles, is_awake=is_awake, runs=run, is_own=is_own)
    observer.compare_with(made)


def _attention(observer: Observer, where: Selector | None, every: Schedule | None) -> None:
    if observer.heads is not None:
        raise SondeError("Attention is being listened to already.")
    observer.listen(
        AttentionStats(observer.capture, observer.tallies, observer.asker.recipes, where, every)
    )


def _rcc(observer: Observer, where: Selector | None, every: Schedule | None) -> None:
    if observer.reference is None:
        raise SondeError(
            "The coordinate check compares with a reference, and there is none. "
            "Call watch.set_reference('init') first, before the model is trained."
        )
    capture = observer.capture
    observer.replay(CoordinateCheck(observer.tallies, capture.troubles, where, every))


def _pipeline(observer: Observer, where: Selector | None, every: Schedule | None) -> None:
    observer.follow_gradients(GradientStages(observer.guard_gradient, where, every))


INSTRUMENTS: Final = {"attention": _attention, "rcc": _rcc, "gradient_pipeline": _pipeline}
"""Metrics that are more than a function of a tensor."""


def _copied(model: nn.Module) -> nn.Module:
    try:
        with torch.no_grad():
            made = copy.deepcopy(model)
    except Exception as error:
        pass_on(error)
        raise SondeError(
            f"The model cannot be copied: {error!r}. Give a reference yourself."
        ) from error
    return made.requires_grad_(requires_grad=False)
