"""Between a capture and the graph of its model: who is told what."""

from __future__ import annotations

from torch import Tensor, nn

from sonde._signals import pass_on
from sonde._torch_internals.frames import stay_out_of
from sonde.capture.drain import Drain
from sonde.capture.leaves import leaves
from sonde.capture.torch import names
from sonde.capture.torch.hooks import MAX_SLOTS, inputs
from sonde.capture.troubles import Troubles
from sonde.graph.torch import GraphTaker, TensorAccess, skipped_code


def taker(model: nn.Module, drain: Drain, troubles: Troubles, max_calls: int) -> GraphTaker:
    """Takes the graph of the model and hands it to the drain."""
    return GraphTaker(
        model,
        TensorAccess(names.modules, _inputs, _outputs),
        publish=drain.put,
        report=lambda error: troubles.failed("graph", error),
        max_calls=max_calls,
    )


def _inputs(args: tuple[object, ...], kwargs: dict[str, object]) -> list[tuple[str, Tensor]]:
    return inputs(args, kwargs, MAX_SLOTS)


def _outputs(output: object) -> list[tuple[str, Tensor]]:
    try:
        return leaves(output, Tensor, MAX_SLOTS)
    except Exception as error:
        pass_on(error)
        return []  # the module that returned it has told, and is left out


for _code in skipped_code():
    stay_out_of(_code)
