"""Parties: the watched parameters of one optimizer, with what is prepared for reading them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from sonde.capture.leaves import leaves
from sonde.capture.torch.hooks import MAX_SLOTS
from sonde.capture.torch.names import NamedParameter
from sonde.capture.torch.ranks.local import locals_of
from sonde.capture.torch.rows.bundles import Kept, TensorBundle
from sonde.capture.window import Spot
from sonde.record import Kind

ParameterSigns = tuple[list[int], list[bool]]
"""Who parameters are, and which of them train."""


def signs_of(parameters: Sequence[Tensor]) -> ParameterSigns:
    return list(map(id, parameters)), [p.requires_grad for p in parameters]


class WatchedParameter:
    """A selected parameter and its spots."""

    __slots__ = ("full", "module_type", "name", "parameter", "path", "spots")

    def __init__(self, named: NamedParameter) -> None:
        self.path = named.path
        self.name = named.name
        self.full = named.full
        self.parameter = named.ref
        self.module_type = type(named.module()).__name__
        self.spots: dict[tuple[Kind, str], Spot] = {}


class ParameterBatch:
    """Watched parameters that go together, and what was prepared for each kind.

    Keeps them alive only between `hold` and `let_go`. `values` are what of them lies on this rank.
    """

    __slots__ = ("_references", "bundles", "tensors", "values", "watched")

    def __init__(self, known: list[tuple[WatchedParameter, Tensor]]) -> None:
        self.watched = [w for w, _ in known]
        self._references = [w.parameter for w in self.watched]
        self.bundles: dict[tuple[Kind, str], TensorBundle] = {}
        self.tensors: list[Tensor] = []
        self.values: list[Tensor] = []

    def hold(self) -> None:
        """Have the tensors at hand. Their owner sees to it that they live."""
        if not self.tensors:
            tensors: list[Tensor] = [p for known in self._references if (p := known()) is not None]
            self.values = locals_of(tensors)
            self.tensors = tensors  # last: whoever is interrupted before it holds them again

    def look(self) -> None:
        """Have the values of the tensors as they are now."""
        self.values = locals_of(self.tensors)

    def let_go(self) -> None:
        self.tensors = []
        self.values = []


class OptimizerParameters:
    """The watched parameters of one optimizer (or of none), those that train and those that do not.

    `kept` are copies of the former while the optimizer is at work.
    """

    __slots__ = (
        *("changing", "kept", "signs", "state", "state_keys", "state_names", "still", "version"),
    )

    def __init__(
        self, version: int, signs: ParameterSigns, known: list[tuple[WatchedParameter, Tensor]]
    ) -> None:
        self.version = version
        self.signs = signs
        self.changing = ParameterBatch([(w, p) for w, p in known if p.requires_grad])
        self.still = ParameterBatch([(w, p) for w, p in known if not p.requires_grad])
        self.kept: Kept = ()
        self.state: TensorBundle | None = None
        self.state_names: list[tuple[int, str]] = []
        self.state_keys: list[tuple[int, list[str]]] = []

    @property
    def is_held(self) -> bool:
        return bool(self.changing.tensors or self.still.tensors)

    def let_go(self) -> None:
        self.changing.let_go()
        self.still.let_go()


def spot_of(watched: WatchedParameter, kind: Kind, suffix: str) -> Spot:
    found = watched.spots.get((kind, suffix))
    if found is None:
        slot = watched.name + suffix
        found = Spot(kind, watched.path, 0, slot, watched.module_type, "train")
        watched.spots[kind, suffix] = found
    return found


def same_state(optimizer: Optimizer, party: OptimizerParameters) -> list[Tensor] | None:
    """The tensors of the state, if it is made as it was; most of the time it is."""
    tensors, state, made = party.changing.tensors, optimizer.state, party.state_keys
    if not tensors or not isinstance(state, dict) or not len(tensors) == len(state) == len(made):
        return None
    found: list[Tensor] = []
    for (key, values), p, (n, names) in zip(state.items(), tensors, made, strict=True):
        if key is not p or not isinstance(values, dict) or len(values) != n:
            return None
        for name in names:
            x = values.get(name)
            if not isinstance(x, Tensor):
                return None
            found.append(x)
    return found


def state_of(
    optimizer: Optimizer, party: OptimizerParameters
) -> tuple[list[tuple[int, str]], list[Tensor]]:
    """The tensors of the state, each with its parameter and name; and how it is made, if simple."""
    names: list[tuple[int, str]] = []
    tensors: list[Tensor] = []
    made: list[tuple[int, list[str]]] = []
    for k, p in enumerate(party.changing.tensors):
        state = optimizer.state.get(p)
        if not state:
            continue
        keys = [key for key, value in state.items() if key != "step" and isinstance(value, Tensor)]
        if len(keys) + ("step" in state) == len(state):
            made.append((len(state), keys))
        for key, value in state.items():
            if key == "step":
                continue
            if isinstance(value, Tensor):
                names.append((k, key))
                tensors.append(value)
                continue
            for slot, x in leaves(value, Tensor, MAX_SLOTS):
                names.append((k, f"{key}.{slot}"))
                tensors.append(x)
    party.state_keys = made if len(made) == len(party.changing.tensors) else []
    return names, tensors
