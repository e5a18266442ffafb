"""Keras with its torch backend: a callback for `fit`.

A layer of Keras is a module of torch, but a model does not register its layers as submodules. So
what is watched is a module that holds both.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sonde._errors import SondeError
from sonde._require import require
from sonde.integrations.training import TrainerWatch
from sonde.watching import Watch

_keras = require("keras", extra="keras")
_Callback: Any = _keras.callbacks.Callback


class KerasLayers(nn.Module):
    """The layers of a Keras model by name, and the model itself as `model`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._add(model, self)
        self.add_module("model", model)

    @property
    def training(self) -> bool:
        """That of the model."""
        model = self._modules.get("model")
        return model is None or model.training

    @training.setter
    def training(self, value: bool) -> None: ...

    def _add(self, model: Any, to: nn.Module) -> None:
        for layer in model.layers:
            name = layer.name.replace(".", "_")  # torch allows no dot
            if not getattr(layer, "layers", None):
                to.add_module(name, layer)
                continue
            inner = nn.Module()  # a model in the model
            self._add(layer, inner)
            inner.add_module("model", layer)
            to.add_module(name, inner)


class KerasCallback(_Callback):  # type: ignore[misc]  # its package has no types
    """Watches a Keras model while it is fitted, and all of its validations.

    Takes the options of `sonde.watch`. Steps are those of `optimizer.iterations`. Needs the torch
    backend and `steps_per_execution=1`.
    """

    def __init__(self, **options: Any) -> None:  # as `sonde.watch` takes them
        super().__init__()
        self._training = TrainerWatch(self, options)
        self._accumulated = 1
        self._batches = 0
        self._layers: KerasLayers | None = None

    @property
    def watch(self) -> Watch | None:
        """The watch, while the model is fitted."""
        return self._training.watch

    def on_train_begin(self, logs: Any = None) -> None:
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

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        self._training.log(logs or {})
        if self.watch is not None and self._batches % self._accumulated == 0:
            self.watch.step()

    def on_test_end(self, logs: Any = None) -> None:
        self._training.log({f"val_{name}": value for name, value in (logs or {}).items()})

    def on_train_end(self, logs: Any = None) -> None:
        self._training.end()
        self._layers = None


SondeCallback = KerasCallback
