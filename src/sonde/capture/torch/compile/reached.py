"""Whether traced code reaches a module from the watched model.

A frame that reaches its modules from the model (`model.blocks[3].up`) runs the same modules each
time. A frame that starts at a part of it (the `forward` of a block, the rest of a function after a
graph break, a function with a module as argument) may serve every module of that class.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sonde.capture.torch.compile.guards import hooked


def is_reached_from(root: nn.Module | None, tap: Any, scope: dict[str, Any]) -> bool:
    """Whether the module of a tap is reached from that root in the frame that is being traced.

    `tap` is the compiler's record of the tap, `scope` has the frame's globals and locals.
    """
    source = hooked(tap.source)
    while source is not None:
        if source.get_value(scope, {}, {}) is root:
            return root is not None
        source = getattr(source, "base", None)
    return False
