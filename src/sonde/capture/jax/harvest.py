"""The harvest: a traced function with taps becomes one that also returns rows of sketches.

Walks the jaxpr and evaluates it again, with a call of the kernel where taps are. Rows leave a
`scan` stacked, one per turn; a branch that is not taken leaves empty ones; what `remat` computes a
second time in the backward pass is not counted twice. After this nothing is differentiated any
more, so functions with rules of their own are walked as what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import Mesh, PartitionSpec

from sonde.capture.jax.groups import Cut, Group, Loop, MetricGroup
from sonde.capture.jax.jaxprs import (
    bind,
    constrained,
    jaxprs_in,
    opened,
    scanned,
    stacks_in,
    taps_in,
    varying,
    without_names,
)
from sonde.capture.jax.measures import Measures
from sonde.capture.jax.taps import JaxTap, cotap_p, tap_p
from sonde.kernels import jax as kernels
from sonde.kernels import xla
from sonde.record import PARAMETER_KINDS

_TOGETHER: Final = 512
"""Arrays that one call of the kernel takes at most."""

_Walked = tuple[Sequence[Array], list[Group]]
"""The outputs of an equation, and what was harvested inside it."""


@dataclass
class Harvest:
    """Evaluates jaxprs, sketches what `wants` says and evaluates metrics. `skip` is called with
    what cannot be sketched. `manual` are the axes of the `shard_map` that is walked."""

    wants: Callable[[JaxTap], bool]
    kernel: kernels.Kernel
    mesh: Mesh | None = None
    skip: Callable[[str, str], None] = lambda _where, _reason: None
    measures: Measures = field(default_factory=Measures)
    manual: frozenset[str] = frozenset()
    stacks: dict[str, int] = field(default_factory=dict)
    _copies: dict[JaxTap, frozenset[str]] = field(default_factory=dict)
    _tapped: dict[int, tuple[Jaxpr, bool]] = field(default_factory=dict)

    @property
    def n_devices(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    def __call__(
        self, closed: ClosedJaxpr, args: Sequence[Array]
    ) -> tuple[list[Array], list[Group]]:
        """The function's outputs, and what was harvested."""
        jaxpr, consts = opened(closed)
        self.stacks = dict(stacks_in(jaxpr))
        return self.walk(jaxpr, consts, args, is_again=False)

    def rows_of(self, groups: Sequence[Group]) -> Array:
        """All rows in one array, (devices, rows, ROW), in the order of the groups."""
        d, row = self.n_devices, kernels.ROW
        parts = []
        for group in groups:
            if isinstance(group, MetricGroup):
                continue
            rows = jnp.moveaxis(group.rows, len(group.loops), 0)
            parts.append(rows.reshape(d, group.n_rows, row))
        return jnp.concatenate(parts, axis=1) if parts else jnp.zeros((d, 0, row), jnp.uint32)

    def has_taps(self, jaxpr: Jaxpr) -> bool:
        known = self._tapped.get(id(jaxpr))
        if known is None:
            found = any(True for _ in taps_in(jaxpr))
            self._tapped[id(jaxpr)] = known = (jaxpr, found)  # keeps it, and so its id
        return known[1]

    # -- walking -------------------------------------------------------------------------------

    def walk(
        self, jaxpr: Jaxpr, consts: Sequence[Array], args: Sequence[Array], *, is_again: bool
    ) -> tuple[list[Array], list[Group]]:
        """A function's outputs, and what was harvested. `is_again`: only gradients are new."""
        values: dict[Var, Array] = {}
        groups: list[Group] = []
        pending: list[tuple[JaxTap, Array]] = []

        def read(atom: Var | Literal) -> Array:
            return atom.val if isinstance(atom, Literal) else values[atom]

        values.update(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))
        for eqn in jaxpr.eqns:
            inputs = [read(a) for a in eqn.invars]
            if eqn.primitive is tap_p or eqn.primitive is cotap_p:
                values[eqn.outvars[0]] = inputs[0]
                what = eqn.params["tap"]
                is_shown = not is_again or what.kind.endswith("_grad")
                if eqn.primitive is tap_p and is_shown:
                    if self.manual:
                        self._copies[what] = self.manual - varying(eqn.invars[0], self.manual)
                    groups += self._measure(what, inputs[0])
                    if self.wants(what):
                        pending.append((what, inputs[0]))
                continue
            if pending:
                groups += self.sketch(pending)
                pending = []
            with eqn.ctx.manager:
                outputs, found = self._step(eqn, inputs, is_again=is_again)
            groups += found
            values.update(zip(eqn.outvars, outputs, strict=True))
        groups += self.sketch(pending)
        return [read(a) for a in jaxpr.outvars], groups

    def _measure(self, tap: JaxTap, x: Array) -> Sequence[Group]:
        return self.measures.see(tap, x, stack_of(tap, x, self.stacks))

    def _step(self, eqn: JaxprEqn, inputs: list[Array], *, is_again: bool) -> _Walked:
        inner = [j for j in jaxprs_in(eqn.params) if self.has_taps(j)]
        if not inner:
            return bind(eqn, inputs), []
        walk = _WALKS.get(eqn.primitive.name)
        if walk is None:
            for tap in {t for j in inner for t in taps_in(j)}:
                if self.wants(tap):
                    self.skip(tap.path or ".", _unseen(eqn.primitive.name))
            return bind(eqn, inputs), []
        outputs, groups = walk(self, eqn, inputs, is_again)
        return outputs, groups

    def sketch(self, pending: Sequence[tuple[JaxTap, Array]]) -> list[Group]:
        """Sketch tapped arrays together."""
        readable = []
        for tap, x in pending:
            try:
                kernels.check(x)
            except kernels.Unreadable as reason:
                self.skip(f"{tap.path or '.'}/{tap.kind}/{tap.slot}", str(reason))
            else:
                readable.append((tap, x))
        by_stack: dict[tuple[str, int] | None, list[tuple[JaxTap, Array]]] = {}
        for tap, x in readable:
            by_stack.setdefault(stack_of(tap, x, self.stacks), []).append((tap, x))
        return [
            self._together(stack, some[first : first + _TOGETHER])
            for stack, some in by_stack.items()
            for first in range(0, len(some), _TOGETHER)
        ]

    def _together(self, stack: tuple[str, int] | None, some: list[tuple[JaxTap, Array]]) -> Group:
        """One call of the kernel; one for each array where they are spread over devices."""
        n_parts = 1 if stack is None else stack[1]
        arrays = [x for _, x in some]
        if self.mesh is None:
            rows = kernels.sketch(*arrays, kernel=self.kernel, parts=n_parts)
            rows = rows.reshape(len(arrays), n_parts, 1, kernels.ROW)
            if self.manual:
                copies = [self._copies[tap] for tap, _ in some]
                own = zip(rows, copies, strict=True)
                rows = jnp.stack([kernels.once(of_one, axes) for of_one, axes in own])
        else:
            sharded = partial(kernels.sketch_shards, kernel=self.kernel, mesh=self.mesh)
            parts = [[x] if stack is None else list(x) for x in arrays]
            rows = jnp.stack([jnp.stack([sharded(p) for p in of]) for of in parts])
        rows = jnp.moveaxis(rows, 0, 2)  # of (arrays, parts, devices, words)
        if stack is None:
            cuts = tuple(Cut(tap, x.dtype.name, tuple(x.shape)) for tap, x in some)
            return Group(cuts, rows[0])
        cuts = tuple(Cut(tap, x.dtype.name, tuple(x.shape[1:])) for tap, x in some)
        return Group(cuts, rows, (Loop(n_parts, path=stack[0]),))

    def _reduced(self, groups: list[Group], name: str) -> list[Group]:
        """Without metrics that need all values of a step, in a branch that may not be taken."""
        kept = [g for g in groups if not (isinstance(g, MetricGroup) and g.is_raw)]
        if len(kept) < len(groups):
            self.skip("metrics", f"inside `{name}`. Use reduce='mean', 'sum', 'min' or 'max'")
        return kept

    # -- primitives that hold functions --------------------------------------------------------

    def walk_jit(self, eqn: JaxprEqn, inputs: list[Array], is_again: bool) -> _Walked:
        jaxpr, consts = opened(eqn.params["jaxpr"])
        inputs = constrained(inputs, eqn.params.get("in_shardings", ()))
        outputs, groups = self.walk(jaxpr, consts, inputs, is_again=is_again)
        return constrained(outputs, eqn.params.get("out_shardings", ())), groups

    def walk_call(self, eqn: JaxprEqn, inputs: list[Array], is_again: bool) -> _Walked:
        jaxpr, consts = opened(eqn.params["call_jaxpr"])
        return self.walk(jaxpr, consts, inputs, is_again=is_again)

    def walk_remat(self, eqn: JaxprEqn, inputs: list[Array], is_again: bool) -> _Walked:
        again = is_again or eqn.params["differentiated"]
        if not again:
            return self.walk(eqn.params["jaxpr"], (), inputs, is_again=False)
        box: list[Group] = []

        def body(*args: Array) -> tuple[Sequence[Array], list[Array]]:
            with self.measures.inside():
                outputs, box[:] = self.walk(eqn.params["jaxpr"], (), args, is_again=True)
            return outputs, [g.rows for g in box]

        inner, consts = opened(jax.make_jaxpr(body)(*inputs))
        own = inner.replace(
            constvars=[], invars=[*inner.constvars, *inner.invars], debug_info=without_names(inner)
        )
        results = eqn.primitive.bind(*consts, *inputs, **(eqn.params | {"jaxpr": own}))
        n = len(results) - len(box)
        groups = [replace(g, rows=r) for g, r in zip(box, results[n:], strict=True)]
        return results[:n], groups

    def walk_scan(self, eqn: JaxprEqn, inputs: list[Array], is_again: bool) -> _Walked:
        p = eqn.params
        jaxpr, closed_over = opened(p["jaxpr"])
        consts, init, xs = scanned(p, inputs)
        n_carry = len(init)
        box: list[Group] = []

        def body(carry: Sequence[Array], xs: Sequence[Array]) -> object:
            args = [*consts, *carry, *xs]
            with self.measures.inside():
                outputs, box[:] = self.walk(jaxpr, closed_over, args, is_again=is_again)
            return outputs[:n_carry], (outputs[n_carry:], [g.rows for g in box])

        carry, (ys, rows) = lax.scan(
            body, init, xs, length=p["length"], reverse=p["reverse"], unroll=p["unroll"]
        )
        calls = frozenset(t.call for t in taps_in(jaxpr) if t.call is not None)
        loop = Loop(p["length"], calls)
        groups = [
            replace(g, rows=r, loops=(loop, *g.loops)) for g, r in zip(box, rows, strict=True)
        ]
        return [*carry, *ys], groups

    def walk_cond(self, eqn: JaxprEqn, inputs: list[Array], is_again: bool) -> _Walked:
        index, operands = inputs[0], inputs[1:]
        found: list[list[Group]] = []

        def evaluate(closed: ClosedJaxpr, *args: Array) -> _Walked:
            jaxpr, consts = opened(closed)
            with self.measures.inside():
                outputs, groups = self.walk(jaxpr, consts, args, is_again=is_again)
            return outputs, self._reduced(groups, "cond")

        for closed in eqn.params["branches"]:
            box: list[Group] = []

            def look(
                *args: Array, closed: ClosedJaxpr = closed, box: list[Group] = box
            ) -> tuple[Sequence[Array], list[Array]]:
                outputs, box[:] = evaluate(closed, *args)
                return outputs, [g.rows for g in box]

            _, shapes = jax.eval_shape(look, *operands)
            found.append([replace(g, rows=s) for g, s in zip(box, shapes, strict=True)])

        def branch(i: int, closed: ClosedJaxpr, *args: Array) -> object:
            outputs, own = evaluate(closed, *args)
            rows = [
                [g.rows for g in own] if k == i else [g.empty() for g in groups]
                for k, groups in enumerate(found)
            ]
            return outputs, rows

        branches = [partial(branch, i, closed) for i, closed in enumerate(eqn.params["branches"])]
        outputs, rows = lax.switch(index, branches, *operands)
        return outputs, [
            replace(g, rows=r)
            for groups, own in zip(found, rows, strict=True)
            for g, r in zip(groups, own, strict=True)
        ]

    def walk_while(self, eqn: JaxprEqn, inputs: list[Array], is_again: bool) -> _Walked:
        """All turns merge: how many there are is not known before they run."""
        p = eqn.params
        n, m = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        of_cond, of_body, init = inputs[:n], inputs[n:m], inputs[m:]
        box: list[Group] = []

        def turn(*carry: Array) -> tuple[Sequence[Array], list[Array]]:
            jaxpr, consts = opened(p["body_jaxpr"])
            with self.measures.inside():
                outputs, found = self.walk(jaxpr, consts, [*of_body, *carry], is_again=is_again)
            box[:] = [g for g in found if not isinstance(g, MetricGroup)]
            if len(box) < len(found):
                self.skip("metrics", _unseen("while"))
            return outputs, [g.rows for g in box]

        _, shapes = jax.eval_shape(turn, *init)
        empty = [replace(g, rows=s).empty() for g, s in zip(box, shapes, strict=True)]

        def body(state: tuple[Sequence[Array], list[Array]]) -> object:
            outputs, rows = turn(*state[0])
            return outputs, [xla.merged(a, b) for a, b in zip(state[1], rows, strict=True)]

        def goes_on(state: tuple[Sequence[Array], list[Array]]) -> Array:
            jaxpr, consts = opened(p["cond_jaxpr"])
            return jax.core.eval_jaxpr(jaxpr, consts, *of_cond, *state[0])[0]

        outputs, rows = lax.while_loop(goes_on, body, (init, empty))
        return outputs, [replace(g, rows=r) for g, r in zip(box, rows, strict=True)]

    def walk_shard_map(self, eqn: JaxprEqn, inputs: list[Array], is_again: bool) -> _Walked:
        """Each device sketches what it has; rows come out one per device."""
        p = eqn.params
        axes = frozenset(p.get("newly_manual_axes", p.get("manual_axes", ())))
        mesh = p["mesh"]
        if self.mesh is None or mesh.size != self.mesh.size or axes != set(mesh.axis_names):
            self.skip("shard_map", "it is over some of the devices only. Use all axes of the mesh")
            return bind(eqn, inputs), []
        jaxpr, consts = opened(p["jaxpr"])
        if any(self.measures.wants(tap) for tap in taps_in(jaxpr)):
            self.skip("metrics", _unseen("shard_map"))
        inner = replace(self, mesh=None, measures=Measures(), manual=axes)
        box: list[Group] = []

        def body(*args: Array) -> tuple[Sequence[Array], list[Array]]:
            outputs, box[:] = inner.walk(jaxpr, consts, args, is_again=is_again)
            return tuple(outputs), [jnp.moveaxis(g.rows, len(g.loops), 0) for g in box]

        outputs, rows = jax.shard_map(
            body,
            mesh=mesh,
            in_specs=tuple(p["in_specs"]),
            out_specs=(tuple(p["out_specs"]), PartitionSpec(tuple(mesh.axis_names))),
            axis_names=axes,
            check_vma=p["check_vma"],
        )(*inputs)
        moved = [jnp.moveaxis(r, 0, len(g.loops)) for g, r in zip(box, rows, strict=True)]
        return outputs, [replace(g, rows=r) for g, r in zip(box, moved, strict=True)]


_Walk = Callable[[Harvest, JaxprEqn, list[Array], bool], _Walked]

_WALKS: Final[dict[str, _Walk]] = {
    "jit": Harvest.walk_jit,
    "pjit": Harvest.walk_jit,
    "closed_call": Harvest.walk_call,
    "custom_jvp_call": Harvest.walk_call,
    "custom_vjp_call": Harvest.walk_call,
    "custom_vjp_call_jaxpr": Harvest.walk_call,
    "remat2": Harvest.walk_remat,
    "checkpoint": Harvest.walk_remat,
    "scan": Harvest.walk_scan,
    "cond": Harvest.walk_cond,
    "while": Harvest.walk_while,
    "shard_map": Harvest.walk_shard_map,
}
"""How each primitive that holds functions is walked. Taps inside any other are skipped."""


_REMEDIES: Final = {
    "while": "Use jax.lax.scan, or jax.lax.fori_loop with fixed bounds",
    "shard_map": "Return the value and attach it outside",
}
"""What to do about primitives that cannot be walked."""


def _unseen(name: str) -> str:
    """Why something inside a primitive is left out, and what to do about it."""
    return f"inside `{name}`. {_REMEDIES.get(name, 'Return the value and attach it outside')}"


def stack_of(tap: JaxTap, x: Array, stacks: Mapping[str, int]) -> tuple[str, int] | None:
    """The module whose layers a parameter is stacked for, and how many there are."""
    if tap.kind not in PARAMETER_KINDS:
        return None
    for path, n in stacks.items():
        is_inside = tap.path == path or tap.path.startswith(f"{path}.") or not path
        if is_inside and x.ndim and x.shape[0] == n:
            return path, n
    return None
