"""Jaxprs: the functions inside a traced function, their taps, and how equations are repeated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import Mesh, Sharding

from sonde.capture.jax.groups import Loop
from sonde.capture.jax.taps import JaxTap, tap_p

if TYPE_CHECKING:
    from jax.extend.core import DebugInfo


def stacks_in(jaxpr: Jaxpr) -> Iterator[tuple[str, int]]:
    """Modules whose layers a `scan` runs over, with how many they are."""
    for eqn in jaxpr.eqns:
        inner = list(jaxprs_in(eqn.params))
        if eqn.primitive.name == "scan":
            calls = {t.call for j in inner for t in taps_in(j) if t.call is not None}
            loop = Loop(eqn.params["length"])
            for call in calls:
                if call.parent not in calls and call.size and loop.runs_over_layers(call):
                    yield call.path, loop.length
        for j in inner:
            yield from stacks_in(j)


def taps_in(jaxpr: Jaxpr) -> Iterator[JaxTap]:
    """The taps of a function and of those inside it."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is tap_p:
            yield eqn.params["tap"]
        else:
            for inner in jaxprs_in(eqn.params):
                yield from taps_in(inner)


def jaxprs_in(params: Mapping[str, object]) -> Iterator[Jaxpr]:
    """The functions among the parameters of an equation."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item


def opened(jaxpr: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, Sequence[Array]]:
    """A function and what it closes over, whichever of the two kinds it is."""
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, ClosedJaxpr) else (jaxpr, ())


def scanned(
    params: Mapping[str, Any], inputs: list[Array]
) -> tuple[list[Array], list[Array], list[Array]]:
    """The inputs of a `scan`: what it closes over, what it carries, what it runs over."""
    if "ft_in" in params:  # from JAX 0.11 on
        consts, init, xs = map(list, params["ft_in"].update(inputs).unpack())
        return consts, init, xs
    n, m = params["num_consts"], params["num_consts"] + params["num_carry"]
    return inputs[:n], inputs[n:m], inputs[m:]


def bind(eqn: JaxprEqn, inputs: list[Array]) -> Sequence[Array]:
    """What an equation computes of these inputs."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # as older ones return
    outputs = eqn.primitive.bind(*functions, *inputs, **params)
    return outputs if eqn.primitive.multiple_results else [outputs]


def constrained(values: Sequence[Array], shardings: Sequence[object]) -> list[Array]:
    """The values with the shardings that were asked for, where any was."""
    if not shardings:
        return list(values)
    return [
        lax.with_sharding_constraint(x, s) if isinstance(s, Sharding) else x
        for x, s in zip(values, shardings, strict=True)
    ]


def without_names(jaxpr: Jaxpr) -> DebugInfo:
    """The notes of a function whose arguments have no names any more."""
    return jaxpr.debug_info._replace(arg_names=None, result_paths=None)


def varying(x: Var | Literal, manual: frozenset[str]) -> frozenset[str]:
    """Of the axes of a `shard_map`, those along which devices have different values; all of them
    where JAX was told not to check."""
    kind = getattr(x.aval, "mat", None)
    found = getattr(kind, "varying", None) if kind is not None else getattr(x.aval, "vma", None)
    return frozenset(found) if found else manual


def mesh_in(jaxpr: Jaxpr) -> Mesh | None:
    """The largest mesh that a `shard_map` inside a function is over."""
    found: list[Mesh] = []
    for eqn in jaxpr.eqns:
        mesh = eqn.params.get("mesh")
        if eqn.primitive.name == "shard_map" and isinstance(mesh, Mesh):
            found.append(mesh)
        found += filter(None, map(mesh_in, jaxprs_in(eqn.params)))
    return max(found, key=lambda mesh: mesh.size, default=None)
