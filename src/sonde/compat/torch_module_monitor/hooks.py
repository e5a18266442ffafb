"""Forward hooks that are taken off together. The monitor itself does not need them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from torch import nn
from torch.utils.hooks import RemovableHandle


class HooksManager:
    """At most one forward hook per module; all go when it does, or at the end of a `with` block."""

    def __init__(self) -> None:
        self.hooks: dict[nn.Module, RemovableHandle] = {}

    def register_forward_hook(self, module: nn.Module, hook_fn: Callable[..., object]) -> None:
        """Put a hook on the module, in place of the one that is there."""
        self.remove_hook(module)
        self.hooks[module] = module.register_forward_hook(hook_fn)

    def remove_hook(self, module: nn.Module) -> None:
        """Take the hook off the module, if there is one."""
        if (handle := self.hooks.pop(module, None)) is not None:
            handle.remove()

    def remove_all_hooks(self) -> None:
        """Take every hook off."""
        for module in list(self.hooks):
            self.remove_hook(module)

    def __len__(self) -> int:
        return len(self.hooks)

    def __del__(self) -> None:
        self.remove_all_hooks()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.remove_all_hooks()
