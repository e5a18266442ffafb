"""What to capture and when, as asked for and checked: kinds, selection, schedule, limits.

A plan is settled before anything touches a model, so that a mistake in it is an error at `watch()`
and never in the middle of a training.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sonde._errors import SondeError
from sonde.record import KINDS, Kind

PRESETS: Final[dict[str, frozenset[Kind]]] = {
    "default": frozenset(
        {"output", "output_grad", "param", "param_grad", "update", "optim", "attach", "attach_grad"}
    ),
    "activations": frozenset({"input", "output", "attach"}),
    "gradients": frozenset({"input_grad", "output_grad", "param_grad", "attach_grad"}),
    "parameters": frozenset({"param", "param_grad", "update", "optim"}),
    "all": frozenset(k for k in KINDS if k != "local"),
}

_OF_CALLS: Final[tuple[Kind, ...]] = ("input", "output", "input_grad", "output_grad")

Every = int | Callable[[int], bool] | Sequence[object]
Schedule = Callable[[int], bool]
Selector = Callable[[str, Any], bool]
"""Whether a path and the module there are meant. `Any`: a module of whichever framework."""
Phases = str | Iterable[str] | Mapping[str, Every | None]
DEFAULT_EVERY: Final = 10
_OWN: Final = ("train", "eval", "no_grad")
"""Phases that passes belong to by themselves; all others are named by the user."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked answer to: which kinds, which sites, up to how many."""

    kinds: frozenset[Kind]
    include: Selector | None = None
    exclude: Selector | None = None
    phases: Mapping[str, Schedule | None] = field(default_factory=lambda: {"train": None})
    max_calls: int = 16
    strict: bool = False
    hyperparameters: bool = True
    final_parameters: bool = True
    exclude_kinds: Mapping[Kind, Selector] = field(default_factory=dict)
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.max_calls < 1:
            raise SondeError(f"`max_calls` must be at least 1, got {self.max_calls}.")

    def wants(self, path: str, module: object) -> bool:
        """Whether the module at that path is selected."""
        if self.include is not None and not self.include(path, module):
            return False
        return self.exclude is None or not self.exclude(path, module)

    def kinds_at(self, kinds: frozenset[Kind], path: str, module: object) -> frozenset[Kind]:
        """Those of the kinds that are not left out at this module."""
        out = {k for k, meant in self.exclude_kinds.items() if k in kinds and meant(path, module)}
        return kinds - out

    def wants_parameter(self, path: str, full: str, module: object) -> bool:
        """Whether a parameter is selected: with its module at `path`, or by its full name."""
        if self.include is not None and not (
            self.include(path, module) or self.include(full, module)
        ):
            return False
        return self.exclude is None or not (
            self.exclude(path, module) or self.exclude(full, module)
        )


def plan_of(
    *,
    log: str | Iterable[str],
    include: object,
    exclude: object,
    phases: Phases,
    every: Every,
    max_calls: int,
    strict: bool,
    hyperparameters: bool,
    final_parameters: bool,
    world_size: int = 1,
) -> tuple[Plan, Every, dict[str, object]]:
    """A plan from the arguments of `sonde.watch`, the schedule of training, and both in words."""
    recorded_phases, every = phases_of(phases, every)
    if max_calls < 1:
        raise SondeError(f"`max_calls` must be at least 1, got {max_calls}.")
    excluded, excluded_kinds = exclusions_of(exclude)
    plan = Plan(
        kinds=kinds_of(log),
        include=selector_of(include, "include"),
        exclude=excluded,
        phases=recorded_phases,
        max_calls=max_calls,
        strict=strict,
        hyperparameters=hyperparameters,
        final_parameters=final_parameters,
        exclude_kinds=excluded_kinds,
        world_size=world_size,
    )
    described: dict[str, object] = {
        "every": every if isinstance(every, int) else repr(every),
        "kinds": sorted(plan.kinds),
        "include": None if include is None else repr(include),
        "exclude": None if exclude is None else repr(exclude),
        "phases": {k: v if isinstance(v, int) else repr(v) for k, v in phases.items()}
        if isinstance(phases, Mapping)
        else sorted(plan.phases),
        "max_calls": max_calls,
        "hyperparameters": hyperparameters,
        "final_parameters": final_parameters,
    }
    return plan, every, described


def kinds_of(log: str | Iterable[str]) -> frozenset[Kind]:
    """Kinds from a preset, a kind, or several of either."""
    asked = [log] if isinstance(log, str) else list(log)
    found: set[Kind] = set()
    for name in asked:
        if name in PRESETS:
            found |= PRESETS[name]
        elif name in KINDS and name != "local":
            found.add(cast("Kind", name))
        else:
            raise SondeError(
                f"`log` has no kind or preset {name!r}. Kinds are: "
                f"{', '.join(k for k in KINDS if k != 'local')}; presets are: {', '.join(PRESETS)}."
            )
    if not found:
        raise SondeError("`log` is empty. To record nothing, do not watch, or set SONDE=off.")
    return frozenset(found)


def phases_of(phases: Phases, every: Every) -> tuple[dict[str, Schedule | None], Every]:
    """The phases to record, each with its schedule (None: that of training), and `every`."""
    if not isinstance(phases, Mapping):
        asked = [phases] if isinstance(phases, str) else list(phases)
        unknown = [name for name in asked if name not in _OWN]
        if unknown:
            raise SondeError(
                "`phases` takes `train`, `eval` and `no_grad`, got "
                f"{', '.join(map(repr, unknown))}. "
                "Other phases are recorded inside `with watch.phase(name):`."
            )
        return dict.fromkeys(asked), every
    found: dict[str, Schedule | None] = {}
    for name, own in phases.items():
        if not isinstance(name, str) or not name:
            raise SondeError(f"A phase is a name, got {name!r} in `phases`.")
        found[name] = None if own is None or name == "train" else schedule_of(own)
    own = phases.get("train")
    if own is None:
        return found, every
    if every not in (own, DEFAULT_EVERY):
        raise SondeError(
            f"`every={every!r}` and `phases={{'train': {own!r}}}` both set the schedule of "
            "training. Give one of them."
        )
    return found, own


def schedule_of(every: Every) -> Schedule:
    """A function of the step from an interval, a function, or windows.

    Windows are `(start, stop)` or `(start, stop, every)` triples, or ranges.
    """
    if callable(every):
        return every
    if isinstance(every, bool) or not isinstance(every, int | Sequence) or isinstance(every, str):
        raise SondeError(
            f"`every` must be a number of steps, a function of the step, or windows such as "
            f"[(0, 100), (1000, 2000, 10)], got {every!r}."
        )
    if isinstance(every, int):
        if every < 1:
            raise SondeError(
                f"`every` must be at least 1 step, got {every}. To stop recording, close the watch."
            )
        return _Interval(every)
    return _Windows(tuple(_range_of(w) for w in every))


def selector_of(patterns: object, argument: str) -> Selector | None:
    """A selector from a glob, `re:` regex, compiled regex, type, predicate, or several of them."""
    if patterns is None:
        return None
    several = patterns if isinstance(patterns, list | tuple | set | frozenset) else [patterns]
    selectors = [_selector(p, argument) for p in several]
    return lambda path, module: any(s(path, module) for s in selectors)


def exclusions_of(exclude: object) -> tuple[Selector | None, dict[Kind, Selector]]:
    """What is left out altogether, and what of single kinds: `{"output_grad": nn.ReLU}`."""
    if not isinstance(exclude, Mapping):
        return selector_of(exclude, "exclude"), {}
    found: dict[Kind, Selector] = {}
    for kind, patterns in exclude.items():
        if kind not in _OF_CALLS:
            raise SondeError(
                f"`exclude` by kind takes {', '.join(f'`{k}`' for k in _OF_CALLS)}, got `{kind}`. "
                "To leave modules out altogether, pass patterns or types without a kind."
            )
        meant = selector_of(patterns, "exclude")
        if meant is not None:
            found[kind] = meant
    return None, found


def _selector(pattern: object, argument: str) -> Selector:
    if isinstance(pattern, re.Pattern):
        return lambda path, _module: pattern.search(path) is not None
    if isinstance(pattern, str):
        matches = matcher(pattern, argument)
        return lambda path, _module: matches(path)
    if isinstance(pattern, type):
        return lambda _path, module: isinstance(module, pattern)
    if callable(pattern):
        return cast("Selector", pattern)
    raise SondeError(
        f"`{argument}` takes globs, regular expressions (`re:...`), module types or a function "
        f"(path, module) -> bool, got {pattern!r}."
    )


def matcher(pattern: str, argument: str) -> Callable[[str], bool]:
    """Whether a name matches a glob, or a regular expression after `re:`."""
    if not pattern.startswith("re:"):
        # fnmatch's translation is cached by re; `*` also crosses dots, as users expect of paths.
        compiled = re.compile(fnmatch.translate(pattern))
        return lambda name: compiled.match(name) is not None
    try:
        regex = re.compile(pattern[3:])
    except re.error as error:
        raise SondeError(
            f"`{argument}` has a bad regular expression {pattern[3:]!r}: {error}."
        ) from error
    return lambda name: regex.search(name) is not None


@dataclass(frozen=True, slots=True)
class _Interval:
    every: int

    def __call__(self, step: int) -> bool:
        return step % self.every == 0


@dataclass(frozen=True, slots=True)
class _Windows:
    windows: tuple[range, ...]

    def __call__(self, step: int) -> bool:
        return any(step in w for w in self.windows)


def _range_of(window: object) -> range:
    if isinstance(window, range):
        return window
    if (
        isinstance(window, tuple | list)
        and len(window) in (2, 3)
        and all(isinstance(n, int) for n in window)
        and (len(window) == 2 or window[2] >= 1)
    ):
        return range(*window)
    raise SondeError(
        f"A window of `every` must be (start, stop) or (start, stop, every), got {window!r}."
    )
