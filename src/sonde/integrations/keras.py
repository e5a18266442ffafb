"""Keras with its torch backend: a callback for `fit`.

A layer of Keras is a module of torch, but a model does not register its layers as submodules. So
what is watched is a module that holds both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, SupportsInt, Unpack, cast

from torch import nn

from sonde._errors import SondeError
from sonde._require import require
from sonde.integrations.training import TrainerWatch, WatchOptions
from sonde.watching import Watch

_keras = require("keras", extra="keras")

if TYPE_CHECKING:  # its package has no types
    _Callback = object
else:
    _Callback = _keras.callbacks.Callback


class KerasOptimizer(Protocol):
    """What is used of `keras.optimizers.Optimizer`."""

    iterations: SupportsInt
    gradient_accumulation_steps: int | None


class KerasModel(Protocol):
    """What is used of `keras.Model`."""

    optimizer: KerasOptimizer
    layers: Sequence[object]


class KerasLayers(nn.Module):
    """The layers of a Keras model by name, and the model itself as `model`."""

    def __init__(self, model: KerasModel) -> None:
        super().__init__()
        _add(model, self)

    @property
    def training(self) -> bool:
        """That of the model."""
        model = self._modules.get("model")
        return model is None or model.training

    @training.setter
    def training(self, value: bool) -> None: ...


def _add(model: KerasModel, to: nn.Module) -> None:
    for layer in model.layers:
        assert isinstance(layer, nn.Module)  # so it is with this backend
        name = str(getattr(layer, "name", "")).replace(".", "_")  # torch allows no dot
        inner = nn.Module() if getattr(layer, "layers", None) else layer
        to.add_module(name, inner)
        if inner is not layer:  # a model in the model
            _add(cast("KerasModel", layer), inner)
    to.add_module("model", cast("nn.Module", model))


class KerasCallback(_Callback):
    """Watches a Keras model while it is fitted, and all of its validations.

    Takes the options of `sonde.watch`. Steps are those of `optimizer.iterations`. Needs the torch
    backend and `steps_per_execution=1`.
    """

    model: KerasModel

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        super().__init__()
        self._training = TrainerWatch(self, options)
        self._accumulated = 1
        self._batches = 0
        self._layers: KerasLayers | None = None

    @property
    def watch(self) -> Watch | None:
        """The watch, while the model is fitted."""
        return self._training.watch

    def on_train_begin(self, logs: object = None) -> None:
        backend = _keras.backend.backend()
        if backend != "torch":
            raise SondeError(
                f"SondeCallback watches Keras with its torch backend, and this is {backend!r}. Set "
                "KERAS_BACKEND=torch before Keras is imported."
            )
        optimizer = self.model.optimizer
        self._accumulated = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        self._batches = 0
        self._layers = KerasLayers(self.model)  # held here: a watch keeps no model alive
        self._training.begin(self._layers, None, step=int(optimizer.iterations))

    def on_train_batch_end(self, batch: int, logs: Mapping[str, object] | None = None) -> None:
        self._batches += 1
        self._training.log(logs or {})
        if self.watch is not None and self._batches % self._accumulated == 0:
            self.watch.step()

    def on_test_end(self, logs: Mapping[str, object] | None = None) -> None:
        self._training.log({f"val_{name}": value for name, value in (logs or {}).items()})

    def on_train_end(self, logs: object = None) -> None:
        self._training.end()
        self._layers = None


SondeCallback = KerasCallback
