"""The backend for PyTorch. Loaded only where torch has been imported."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.torch_version import TorchVersion

from sonde._errors import SondeError
from sonde._torch_internals.placements import agree
from sonde.capture.backend import Backend, Prepared
from sonde.capture.drain import Drain
from sonde.capture.plan import Plan, Schedule

_OLDEST: Final = "2.11"
"""The oldest that was tried. There, gradients inside compiled code are left out, with a note."""


class TorchBackend:
    """Watches a `torch.nn.Module` and the optimizers that train it."""

    name = "torch"

    def takes(self, model: object) -> bool:
        return isinstance(model, nn.Module)

    def prepare(self, model: object, optimizer: object, plan: Plan) -> Prepared:
        found = TorchVersion(torch.__version__)
        if found < _OLDEST:
            raise SondeError(
                f"Sonde needs torch {_OLDEST} or newer, and this is {found}, whose compiler "
                "fails on a watched model. Upgrade torch."
            )
        assert isinstance(model, nn.Module)
        from sonde.capture.torch import session  # after the check: an older torch cannot load it

        optimizers = session.check(model, optimizer, plan)

        def start(schedule: Schedule, drain: Drain, step: int) -> session.TorchSession:
            return session.TorchSession(model, optimizers, plan, schedule, drain, step=step)

        return Prepared(
            model_type=type(model).__name__,
            optimizer_types=[type(o).__name__ for o in optimizers],
            updates=session.updates_of(optimizers),
            start=start,
            agree=agree,
        )


BACKEND: Final[Backend] = TorchBackend()
