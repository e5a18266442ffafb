"""Facts about sites that the table of sites holds: which parameters train, what dropouts drop."""

from __future__ import annotations

from typing import NamedTuple
from weakref import ref

from torch import nn

from sonde._torch_internals.modules import DROPOUTS
from sonde.capture.torch.names import ModelStructure
from sonde.record import PARAMETER_KINDS, Site


class SiteFact(NamedTuple):
    """What is known of a site besides its tensor: None where it does not apply."""

    requires_grad: bool | None = None
    dropout_p: float | None = None


class Facts:
    """Looks facts up in a model, whose parts it knows as of the last change of its structure."""

    def __init__(self, structure: ModelStructure) -> None:
        self._structure = structure
        self._version = -1
        self._parameters: dict[tuple[str, str], ref[nn.Parameter]] = {}
        self._dropouts: dict[str, ref[nn.Module]] = {}

    def of(self, site: Site) -> SiteFact:
        """The facts of a site, as they are now."""
        structure = self._structure
        if self._version != structure.version:
            self._version = structure.version
            self._parameters = {(n.path, n.name): n.ref for n in structure.parameters}
            self._dropouts = {
                path: found for path, found in structure.modules if isinstance(found(), DROPOUTS)
            }
        if site.kind in PARAMETER_KINDS:
            found = self._parameters.get((site.module, site.slot.partition("/")[0]))
            parameter = None if found is None else found()
            return SiteFact(None if parameter is None else parameter.requires_grad)
        return SiteFact(dropout_p=_probability(self._dropouts.get(site.module)))


def _probability(found: ref[nn.Module] | None) -> float | None:
    p: object = None if found is None else getattr(found(), "p", None)
    return float(p) if isinstance(p, int | float) else None
