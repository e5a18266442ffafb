"""Facts about sites that the table of sites holds: which parameters train and which part of them
lies here, what dropouts drop."""

from __future__ import annotations

from typing import NamedTuple
from weakref import ref

from torch import nn

from sonde._torch_internals.modules import DROPOUTS
from sonde.capture.torch.names import ModelStructure
from sonde.capture.torch.ranks.placement import OWN, RankLayout, TensorPart
from sonde.record import PARAMETER_KINDS, Site


class SiteFact(NamedTuple):
    """What is known of a site besides its tensor: None where it does not apply."""

    requires_grad: bool | None = None
    dropout_p: float | None = None
    part: TensorPart = OWN


class Facts:
    """Looks facts up in a model, whose parts it knows as of the last change of its structure."""

    def __init__(self, structure: ModelStructure, layout: RankLayout | None = None) -> None:
        self._structure = structure
        self._layout = layout
        self._version = -1
        self._parameters: dict[tuple[str, str], ref[nn.Parameter]] = {}
        self._dropouts: dict[str, ref[nn.Module]] = {}

    def forget(self) -> None:
        """Let go of all that is known of the model."""
        self._parameters, self._dropouts = {}, {}

    def of(self, site: Site) -> SiteFact:
        """The facts of a site, as they are now."""
        structure = self._structure
        if self._version != structure.version:
            if self._layout is not None and self._version >= 0:
                self._layout.refresh()
            self._version = structure.version
            self._parameters = {(n.path, n.name): n.ref for n in structure.parameters}
            self._dropouts = {
                path: found for path, found in structure.modules if isinstance(found(), DROPOUTS)
            }
        if site.kind in PARAMETER_KINDS:
            found = self._parameters.get((site.module, site.slot.partition("/")[0]))
            parameter = None if found is None else found()
            if parameter is None:
                return SiteFact()
            part = OWN if self._layout is None else self._layout.of_parameter(parameter)
            return SiteFact(parameter.requires_grad, part=part)
        return SiteFact(dropout_p=_probability(self._dropouts.get(site.module)))


def _probability(found: ref[nn.Module] | None) -> float | None:
    p: object = None if found is None else getattr(found(), "p", None)
    return float(p) if isinstance(p, int | float) else None
