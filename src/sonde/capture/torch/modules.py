"""The taps on a model: hooks on every module that is concerned, kept in step with the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from torch import nn

from sonde._torch_internals import modules
from sonde._torch_internals.modules import new_id
from sonde.capture.torch import names
from sonde.capture.torch.compile import hooks
from sonde.capture.torch.compile.operators import share
from sonde.capture.torch.hooks import hang, take_off
from sonde.capture.torch.tap import Tap, TapOwner, is_plain
from sonde.capture.troubles import Troubles
from sonde.record import Kind

MODULE_KINDS: Final[frozenset[Kind]] = frozenset({"input", "output", "input_grad", "output_grad"})


class WatchedModules:
    """One tap per module that is selected, or needed to know where an attached tensor belongs.

    While `must_stay` is set, hooks are not taken off between due steps: something counts on them.
    """

    def __init__(
        self, owner: TapOwner, structure: names.ModelStructure, troubles: Troubles
    ) -> None:
        self._owner = owner
        self._structure = structure
        self._troubles = troubles
        self._number = new_id()
        self._version = -1
        self._taps: dict[int, Tap] = {}
        self._is_resting = False
        self.must_stay = False
        self._is_minded = False
        self._is_shared = False
        self._follows = False

    def share(self) -> None:
        """Make every module known to compiled code that serves several of them."""
        if not self._is_shared:
            self._is_shared = True
            for tap in self._taps.values():
                share(tap)

    def mind(self) -> None:
        """Once there is a compiler, have it tell this model from others of its class."""
        if not self._is_minded and hooks.mind_hooks(self._owner):
            self._is_minded = True
            known = [m for tap in self._taps.values() if (m := tap.module()) is not None]
            if hooks.forget_compiled(known):
                self._troubles.tell(
                    "recompiled", "code that may be of a model without hooks is compiled again"
                )
            hooks.stay_out_of_inbuilt(known)  # last: what is forgotten is compiled again

    def start(self, root: nn.Module | None) -> None:
        """Hook the modules for the first time: all of them, or none if that fails."""
        try:
            self.scan(root)
        except BaseException:
            self.remove()
            raise

    def scan(self, root: nn.Module | None) -> None:
        """Hook the modules that are new, let go of those that are gone."""
        structure = self._structure
        structure.refresh(in_forward=True)
        if self._version == structure.version:
            return
        present = [(path, m) for path, r in structure.modules if (m := r()) is not None]
        kept: set[int] = set()
        is_new = False
        for path, module in present:
            if module is not root and not self._is_concerned(path, module):
                continue
            kept.add(id(module))
            tap = self._taps.get(id(module))
            if tap is None or tap.module() is not module or tap.path != path:
                tap = self._tap(path, module, is_root=module is root)
                # In this order: if a signal handler raises in between, the next scan does it again.
                hang(tap, module, self._number)  # replaces the hooks of another path
                self._taps[id(module)] = tap
                is_new = True
            if self._is_shared:
                share(tap)
        for gone in self._taps.keys() - kept:
            take_off(self._taps[gone], self._number)
            del self._taps[gone]
        self._version = structure.version
        self.mind()
        if is_new and hooks.forget_compiled([m for _, m in present]):
            self._troubles.tell(
                "recompiled", "code compiled before it was watched is compiled again when called"
            )
        if is_new and self._is_minded:
            hooks.stay_out_of_inbuilt(m for _, m in present)

    def widen(self, root: nn.Module | None, *, follows: bool) -> None:
        """The owner looks at more kinds than before, or wants to know calls with their inputs."""
        self._follows |= follows
        kinds = self._owner.kinds & MODULE_KINDS
        changed = []
        for tap in self._taps.values():
            module = tap.module()
            if module is None or not tap.selected:
                continue
            own = self._owner.plan.kinds_at(kinds, tap.path, module)
            if tap.want(own, follows=self._follows):
                changed.append(module)
                if tap.is_root or not self._is_resting:
                    hang(tap, module, self._number)
        if changed and hooks.forget_compiled(changed):
            self._troubles.tell(
                "recompiled", "more kinds are recorded: compiled code is compiled again"
            )
        self._version = -1
        self.scan(root)

    def rest(self) -> None:
        """Take the hooks off while there is nothing to record, but for those of the root."""
        if not (self._is_resting or self.must_stay or self._structure.has_regions):
            self._is_resting = True
            for tap in self._taps.values():
                if not tap.is_root:
                    take_off(tap, self._number)

    def wake(self) -> bool:
        """Put them on again; whether something was compiled meanwhile, without them."""
        if not self._is_resting:
            return False
        self._is_resting = False
        known = [(tap, m) for tap in self._taps.values() if (m := tap.module()) is not None]
        for tap, module in known:
            if not tap.is_root:
                hang(tap, module, self._number)
        is_compiled = hooks.forget_compiled([m for _, m in known])
        self.must_stay |= is_compiled
        return is_compiled

    def unhook(self, modules: Sequence[nn.Module]) -> Callable[[], None]:
        """Take the hooks off these modules; what is returned puts them on again."""
        taken = [(t, m) for m in modules if (t := self._taps.get(id(m))) and t.module() is m]
        for tap, _ in taken:
            take_off(tap, self._number)

        def put_back() -> None:
            for tap, module in taken:
                if self._taps.get(id(module)) is tap and (tap.is_root or not self._is_resting):
                    hang(tap, module, self._number)

        return put_back

    def remove(self) -> None:
        """Take every hook off."""
        hooks.mind_no_more(self._owner)
        for tap in self._taps.values():
            take_off(tap, self._number, for_good=True)
            tap.forget()
        for _, known in self._structure.modules:  # a scan may have been interrupted
            module = known()
            if module is not None:
                modules.take_off(module, self._number, for_good=True)
        self._taps.clear()

    def _tap(self, path: str, module: nn.Module, *, is_root: bool) -> Tap:
        plan = self._owner.plan
        selected = plan.wants(path, module)
        kinds = self._owner.kinds & MODULE_KINDS if selected else frozenset()
        kinds = plan.kinds_at(kinds, path, module)
        tap = Tap(self._owner, path, module, kinds, selected=selected, is_root=is_root)
        tap.want(kinds, follows=self._follows and selected)
        return tap

    def _is_concerned(self, path: str, module: nn.Module) -> bool:
        plan = self._owner.plan
        kinds = self._owner.kinds
        if (self._follows or kinds & MODULE_KINDS) and plan.wants(path, module):
            return True
        return bool(kinds & {"attach", "attach_grad"}) and not is_plain(module)
