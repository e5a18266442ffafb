"""Recorded functions: a step as it is, and a second compiled version that also returns rows.

A step that is not recorded runs the function that was given, as it was given. For a recorded step
the function is traced once more, with taps, harvested and compiled: JAX keeps what it has traced
and compiled for both apart, so that switching between them traces nothing again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import jax
import numpy as np
from flax import nnx
from jax import Array
from jax.extend.core import ClosedJaxpr
from jax.sharding import Mesh, NamedSharding
from jax.tree_util import PyTreeDef

from sonde._signals import pass_on
from sonde.capture.jax import modules, optimizers
from sonde.capture.jax.groups import Cut, Group, Loop, MetricGroup
from sonde.capture.jax.harvest import Harvest, stack_of
from sonde.capture.jax.jaxprs import mesh_in
from sonde.capture.jax.measures import Measure, Measures, measured
from sonde.capture.jax.rows import Layout
from sonde.capture.jax.sites import sites_of
from sonde.capture.jax.taps import JaxTap, Tracing, during
from sonde.kernels import jax as kernels
from sonde.metrics.model import Metric
from sonde.record import Kind

_CONTEXT: Final = jax.make_user_context(default_value=None)
"""Parts what JAX keeps of functions that are traced for recording from what it keeps of others."""

_MOST_VERSIONS: Final = 64
"""Signatures of one function that are compiled for recording."""

_Args = tuple[object, ...]
_Kwargs = Mapping[str, object]


class _Jitted(Protocol):
    """A function of `nnx.jit`."""

    jitted_fn: Callable[..., object]

    def __call__(self, *args: object, **kwargs: object) -> object: ...


class Owner(Protocol):
    """What a recorded function asks of the session."""

    model: object

    @property
    def wanted_kinds(self) -> frozenset[Kind]: ...

    def begin(self) -> str | None:
        """The phase to record this call under, None if it is not recorded."""
        ...

    def wants(self, tap: JaxTap) -> bool: ...

    def skip(self, where: str, reason: str) -> None: ...

    @property
    def due_metrics(self) -> Sequence[Metric]:
        """The metrics to evaluate in this step."""
        ...

    @property
    def wants_scalars(self) -> bool:
        """Whether numbers of the optimizer are recorded."""
        ...

    def fail(self, where: str, error: Exception) -> None:
        """Something of a metric failed."""

    def take_rows(self, layout: Layout, rows: Array, phase: str, types: dict[str, str]) -> None: ...

    def take_numbers(self, measures: Sequence[Measure], numbers: Array, phase: str) -> None: ...

    @property
    def wants_graph(self) -> bool:
        """Whether no graph of the model has been seen yet."""
        ...

    def see_graph(self, closed: ClosedJaxpr) -> None:
        """Take the graph of the model from a traced function."""

    def see_stacks(self, stacks: Mapping[str, int]) -> None:
        """Take note of modules whose parameters are stacked, with how many layers each has."""

    def unrecorded(self, function: object, error: Exception) -> None:
        """The function cannot be traced for recording, and runs without it."""


@dataclass(frozen=True)
class _Version:
    """A function compiled for recording, for arguments of one signature."""

    run: Callable[..., tuple[list[Array], Array, Array]]
    context: int
    tree: PyTreeDef
    layout: Layout
    measures: Sequence[Measure]
    types: dict[str, str]


def recorded(function: Callable[..., object], owner: Owner) -> Callable[..., object]:
    """The function, recorded in steps that are due. What it returns is what it returned before."""
    if hasattr(function, "jitted_fn"):  # of `nnx.jit`
        return _of_nnx(function, function, owner)
    plain = _Recorded(function, owner)
    if _is_jitted(function):
        return plain
    lifted = functools.cache(lambda: _of_nnx(nnx.jit(function), function, owner))

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        # Modules of nnx are changed in place, which takes `nnx.jit`.
        through = lifted() if _holds_objects((args, kwargs)) else plain
        return through(*args, **kwargs)

    return run


def _of_nnx(
    jitted: _Jitted, function: Callable[..., object], owner: Owner
) -> Callable[..., object]:
    """A function of `nnx.jit`, recorded; in steps that are not, `function` is called.

    `nnx.jit` passes the arrays in its arguments to a function of `jax.jit`, in place of which is a
    recorded one during a recorded call.
    """
    inner = jitted.jitted_fn
    recording = _Recorded(inner, owner)

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        if recording.is_off or owner.begin() is None:
            return function(*args, **kwargs)
        jitted.jitted_fn = recording
        try:
            return jitted(*args, **kwargs)
        finally:
            jitted.jitted_fn = inner

    return run


def sketched(
    seen: Sequence[tuple[JaxTap, Array]],
    skip: Callable[[str, str], None],
    stacks: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Layout, Array]:
    """The rows of arrays outside functions, and where they belong. Waits for nothing.

    Parameters of the modules in `stacks` are stacked for that many layers, and come apart.
    """
    readable = []
    for tap, x in seen:
        try:
            kernels.check(x)
        except kernels.Unreadable as reason:
            skip(f"{tap.path or '.'}/{tap.kind}/{tap.slot}", str(reason))
        else:
            readable.append((tap, x, stack_of(tap, x, stacks)))
    arrays = [x for _, x, _ in readable]
    kernel = kernels.kernel_for(_platform_of(arrays))
    parts = tuple(1 if stack is None else stack[1] for _, _, stack in readable)
    rows = _sketcher(kernel, _mesh_of(arrays), parts)(*arrays)
    groups = []
    for tap, x, stack in readable:
        shape = x.shape if stack is None else x.shape[1:]
        loops = () if stack is None else (Loop(stack[1], path=stack[0]),)
        groups.append(Group((Cut(tap, x.dtype.name, tuple(shape)),), rows, loops))
    return Layout(sites_of(groups), sum(parts)), rows


@functools.cache
def _sketcher(
    kernel: kernels.Kernel, mesh: Mesh | None, parts: tuple[int, ...]
) -> Callable[..., Array]:
    harvest = Harvest(lambda _tap: True, kernel, mesh)
    anything = JaxTap("attach", "", "0")

    def sketch(*arrays: Array) -> Array:
        pairs = zip(arrays, parts, strict=True)
        pieces = [p for x, n in pairs for p in ([x] if n == 1 else list(x))]
        return harvest.rows_of(harvest.sketch([(anything, p) for p in pieces]))

    jitted: Callable[..., Array] = jax.jit(sketch)
    return jitted


class _Recorded:
    """A function of arrays, with its versions for recording."""

    def __init__(self, function: Callable[..., object], owner: Owner) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._owner = owner
        self._versions: dict[Hashable, _Version] = {}
        self.is_off = False

    def __call__(self, *args: object, **kwargs: object) -> object:
        phase = None if self.is_off else self._owner.begin()
        if phase is None:
            return self._function(*args, **kwargs)
        split = _Split(self._function, args, kwargs)
        try:
            version = self._version(split)
        except Exception as error:
            return self._alone(error, args, kwargs)
        try:
            with _CONTEXT(version.context):
                outputs, rows, numbers = version.run(*split.arrays)
        except jax.errors.UnexpectedTracerError as error:  # before anything has run
            return self._alone(error, args, kwargs)
        self._owner.take_rows(version.layout, rows, phase, version.types)
        self._owner.take_numbers(version.measures, numbers, phase)
        return jax.tree_util.tree_unflatten(version.tree, outputs)

    def _alone(self, error: Exception, args: _Args, kwargs: _Kwargs) -> object:
        """The function as it is, from now on: it cannot be recorded."""
        pass_on(error)
        self.is_off = True
        self._owner.unrecorded(self._function, error)
        return self._function(*args, **kwargs)

    def _version(self, split: _Split) -> _Version:
        metrics = self._owner.due_metrics
        key = (split.key, *map(id, metrics))
        version = self._versions.get(key)
        if version is None:
            if len(self._versions) >= _MOST_VERSIONS:
                raise TypeError(
                    f"it was called with {_MOST_VERSIONS} different shapes or values of arguments "
                    "that are not arrays. Pass arrays of few shapes"
                )
            version = _compile(self._function, split, self._owner, metrics)
            self._versions[key] = version
        return version


class _Split:
    """Arguments, taken apart: arrays, and all that a function is compiled for."""

    def __init__(self, function: Callable[..., object], args: _Args, kwargs: _Kwargs) -> None:
        leaves, self.tree = jax.tree_util.tree_flatten((args, kwargs))
        static = _static_leaves(function, args, kwargs, leaves)
        self.where = [i for i, is_static in enumerate(static) if not is_static]
        self.static = [i for i, is_static in enumerate(static) if is_static]
        self.arrays = [leaves[i] for i in self.where]
        self.rest = [None if not s else x for s, x in zip(static, leaves, strict=True)]
        self.mesh = _mesh_of(self.arrays)
        self.platform = _platform_of(self.arrays)

    @property
    def key(self) -> Hashable:
        types = tuple([getattr(x, "aval", None) or jax.typeof(x) for x in self.arrays])
        static = tuple([_Static(self.rest[i]) for i in self.static])
        return self.tree, static, types, self.mesh

    def arguments(self, arrays: Sequence[Array]) -> tuple[_Args, _Kwargs]:
        """The arguments again, with these arrays."""
        leaves = list(self.rest)
        for i, x in zip(self.where, arrays, strict=True):
            leaves[i] = x
        args, kwargs = jax.tree_util.tree_unflatten(self.tree, leaves)
        return args, kwargs


class _Static:
    """An argument that is no array, compared by value where it can be, else by identity."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        try:
            return hash(self.value)
        except TypeError:
            return id(self.value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static):
            return False
        same_type = type(self.value) is type(other.value)
        return self.value is other.value or (same_type and bool(self.value == other.value))


def _compile(
    function: Callable[..., object], split: _Split, owner: Owner, metrics: Sequence[Metric]
) -> _Version:
    kinds = owner.wanted_kinds.union(*(m.kinds for m in metrics))
    tracing = Tracing(kinds)
    closed, shape, donated = _traced(function, split, owner, tracing)
    if tracing.modules and owner.wants_graph:
        owner.see_graph(_traced(function, split, owner, Tracing(kinds | {"input"}))[0])
    options = _compiler_options(function)
    context = _context(owner, kinds)
    measures = Measures(metrics, owner.fail, scalars=owner.wants_scalars)
    mesh = split.mesh or mesh_in(closed.jaxpr)
    kernel = kernels.kernel_for(split.platform)
    harvest = Harvest(owner.wants, kernel, mesh, owner.skip, measures)
    box: list[Group] = []
    found: list[Measure] = []

    def with_rows(*arrays: Array) -> tuple[list[Array], Array, Array]:
        outputs, box[:] = harvest(closed, arrays)
        numbers, found[:] = measured(box, owner.fail)
        return outputs, harvest.rows_of(box), numbers

    with_rows.__name__ = with_rows.__qualname__ = f"recorded_{_name(function)}"
    run = jax.jit(with_rows, donate_argnums=donated, compiler_options=options)
    with _CONTEXT(context):
        run.lower(*split.arrays).compile()
    types = {path: type(m).__name__ for path, m in tracing.modules.items()}
    n_rows = sum(g.n_rows for g in box if not isinstance(g, MetricGroup))
    layout = Layout(sites_of(box), n_rows)
    for name in {m.name for m in metrics} - measures.met:
        owner.skip(f"metric {name}", f"`{_name(function)}` has no array that it is of")
    owner.see_stacks(harvest.stacks)
    return _Version(run, context, jax.tree_util.tree_structure(shape), layout, found, types)


def _context(owner: Owner, kinds: frozenset[Kind]) -> int:
    """What parts the functions that are traced with taps of these kinds from others."""
    return hash((id(owner), kinds))


def _traced(
    function: Callable[..., object], split: _Split, owner: Owner, tracing: Tracing
) -> tuple[ClosedJaxpr, object, tuple[int, ...]]:
    """The function with taps, what it returns, and which arguments it gives away."""

    def flat(*arrays: Array) -> object:
        args, kwargs = split.arguments(arrays)
        return function(*args, **kwargs)

    with (
        _CONTEXT(_context(owner, tracing.kinds)),
        during(tracing),
        modules.intercepted(owner.model),
        optimizers.intercepted(),
    ):
        if _compiler_options(function):  # JAX takes these for the outermost function only
            args, kwargs = split.arguments(split.arrays)
            traced = function.trace(*args, **kwargs)  # type: ignore[attr-defined]  # of `jax.jit`
            flags = jax.tree_util.tree_leaves(traced.args_info)
            donated = tuple(i for i, flag in enumerate(flags) if flag.donated)
            return traced.jaxpr, traced.out_info, donated
        closed, shape = jax.make_jaxpr(flat, return_shape=True)(*split.arrays)
        return closed, shape, _donated(closed)


def _donated(closed: ClosedJaxpr) -> tuple[int, ...]:
    """Which arguments the function gives away, if it is one function of `jax.jit`."""
    jaxpr = closed.jaxpr
    if len(jaxpr.eqns) != 1:
        return ()
    flags = jaxpr.eqns[0].params.get("donated_invars", ())
    given = {v for v, is_given in zip(jaxpr.eqns[0].invars, flags, strict=False) if is_given}
    return tuple(i for i, v in enumerate(jaxpr.invars) if v in given)


def _compiler_options(function: object) -> dict[str, object] | None:
    """What a function of `jax.jit` asks of the compiler."""
    info = getattr(function, "_jit_info", None)
    return dict(getattr(info, "compiler_options_kvs", ())) or None


def _is_jitted(function: object) -> bool:
    return hasattr(function, "lower") and hasattr(function, "trace")


def _static_leaves(
    function: object, args: _Args, kwargs: _Kwargs, leaves: Sequence[object]
) -> list[bool]:
    """Which leaves a function is compiled for: what is no array, and what it says is static."""
    if not _is_jitted(function):
        return [not isinstance(x, jax.Array | np.ndarray | np.generic) for x in leaves]
    info = getattr(function, "_jit_info", None)
    numbers = {
        n % len(args) for n in getattr(info, "static_argnums", ()) if -len(args) <= n < len(args)
    }
    names = set(getattr(info, "static_argnames", ()))
    flags: list[bool] = []
    parts = [(i in numbers, a) for i, a in enumerate(args)]
    parts += [(name in names, a) for name, a in sorted(kwargs.items())]
    for is_static, part in parts:
        flags += [is_static] * len(jax.tree_util.tree_leaves(part))
    return flags


def _holds_objects(tree: object) -> bool:
    """Whether there is a module or variable of nnx among the arguments."""
    found = jax.tree_util.tree_leaves(tree, is_leaf=_is_object)
    return any(_is_object(x) for x in found)


def _is_object(x: object) -> bool:
    return isinstance(x, nnx.Module | nnx.Variable | nnx.Optimizer)


def _mesh_of(arrays: Sequence[Array]) -> Mesh | None:
    """The mesh that arrays are spread over, None on one device."""
    if jax.device_count() == 1:
        return None
    largest: Mesh | None = None
    for x in arrays:
        sharding = getattr(x, "sharding", None)
        if sharding is None or len(sharding.device_set) < 2:
            continue
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            mesh = sharding.mesh
        else:
            devices = sorted(sharding.device_set, key=lambda d: d.id)
            mesh = Mesh(np.array(devices), ("devices",))
        if largest is None or mesh.size > largest.size:
            largest = mesh
    return largest


def _platform_of(arrays: Sequence[Array]) -> str:
    for x in arrays:
        if isinstance(x, jax.Array):
            return str(next(iter(x.devices())).platform)
    return str(jax.default_backend())


def _name(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")
