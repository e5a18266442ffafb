"""The refined coordinate check of a training: the reference makes each module's real call again.

When a module is called, the reference's module is called with the same arguments first, so that
nothing the module does to them can matter and both draw the same random numbers. By default that
is done for modules with parameters of their own: each of these once per call, and none of the
containers around them, so that a check costs about two forwards.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from sonde._torch_internals.modules import own_parameters
from sonde._torch_internals.tensors import version_of
from sonde.capture.leaves import leaves
from sonde.capture.torch.metrics.accumulate import StepAccumulators
from sonde.capture.torch.metrics.reference import Reference, first_tensor, unrepeatable
from sonde.capture.troubles import Troubles
from sonde.metrics import names
from sonde.metrics.torch.rcc import Triple, terms


def has_own_parameters(_path: str, module: nn.Module) -> bool:
    """Whether a module computes with parameters itself, and not only its children do."""
    return any(p is not None for p in own_parameters(module).values())


class CoordinateCheck:
    """Makes calls again and tallies how far they are from each other."""

    def __init__(
        self,
        tallies: StepAccumulators,
        troubles: Troubles,
        where: Callable[[str, nn.Module], bool] | None,
        every: Callable[[int], bool] | None,
    ) -> None:
        self.every = every
        self._where = where or has_own_parameters
        self._tallies = tallies
        self._troubles = troubles
        self._chosen: dict[str, bool] = {}
        self._held: dict[tuple[str, int], tuple[Tensor, Tensor | None, int]] = {}

    def wants(self, path: str, module: nn.Module | None) -> bool:
        """Whether the module there is checked. The whole model is not."""
        found = self._chosen.get(path)
        if found is None:
            found = path != "" and module is not None and bool(self._where(path, module))
            self._chosen[path] = found
        return found

    def entered(
        self,
        reference: Reference,
        path: str,
        call: int,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        """A module is about to be called: what the reference makes of the same arguments."""
        if not self.wants(path, module):
            return
        if (strange := unrepeatable((args, kwargs))) is not None:
            self._chosen[path] = False
            self._troubles.skip(path, f"a call with {strange} cannot be made twice")
            return
        again = leaves(reference.replay(path, args, kwargs), Tensor, 1)
        x = first_tensor(args, kwargs)
        if again:
            writes = getattr(module, "inplace", False)
            given = None if x is None else x.detach().clone() if writes else x.detach()
            self._held[path, call] = (again[0][1], given, _version(given))

    def left(
        self,
        reference: Reference,
        path: str,
        call: int,
        module: nn.Module,
        output: object,
        when: tuple[str, int],
    ) -> None:
        """The module has returned: how far all three are from each other."""
        held = self._held.pop((path, call), None)
        mine = leaves(output, Tensor, 1)
        if held is None or not mine:
            return
        slot, a = mine[0]
        c, x, version = held[0].to(a.device, non_blocking=True), held[1], held[2]
        if _version(x) != version:
            self._troubles.skip(path, "the module wrote into its own input")
            x = None
        b = reference.output(path, call, slot, a)
        if b is None:
            return
        first_x = None if x is None else reference.input(path, call, x)
        triple = Triple(module, reference.modules[path], a.detach(), b, c, x, first_x)
        for term, value in terms(triple).items():
            self._tallies.add(names.of_rcc(path, term), "mean", value, when=when)

    def end_step(self) -> None:
        self._held.clear()


def _version(x: Tensor | None) -> int:
    return 0 if x is None or x.is_inference() else version_of(x)
