"""One region as a graph: what it computes, and what its backward pass needs, to choose kept values from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

from holdfast.remat.costs import ancestors, bytes_of, flops_of_equation
from holdfast.remat.measure import shapes_of
from holdfast.remat.regions import Region, is_real
from holdfast.remat.traced_program import CALLS, Body, bind, body_of, constrained

_named: Final[Callable[[Any, str], Any]] = checkpoint_name

PREFIX: Final = "holdfast:"
"""Prefix of the names that the search gives to values, so they cannot collide with a user's names."""


@dataclass(frozen=True)
class Value:
    """A value of the forward pass.

    ``single_bytes``: of one copy. ``kept_bytes``: of all copies, if it is kept from the forward to the backward pass.
    ``label``: the name by which it can be kept; None if it cannot. ``producer``: index of an operation; None for inputs.
    """

    single_bytes: int
    kept_bytes: int
    label: str | None
    producer: int | None


@dataclass(frozen=True)
class Operation:
    """A step of the forward pass. ``flops``: the cost of recomputing it in all repeats of the region.

    ``equation``: in the traced program; None for steps that only name a value.
    """

    inputs: tuple[int, ...]
    flops: int
    moved_bytes: int
    equation: core.JaxprEqn | None = None


@dataclass(frozen=True)
class Graph:
    """A region's forward pass. ``needed``: values that the backward pass reads, each a result or an input."""

    values: tuple[Value, ...]
    operations: tuple[Operation, ...]
    needed: frozenset[int]
    everything_bytes: int

    @property
    def choosable(self) -> tuple[int, ...]:
        """Indices of the values that can be kept."""
        return tuple(i for i, v in enumerate(self.values) if v.label is not None)


def named(closed: core.ClosedJaxpr, keep: frozenset[str] | None) -> Body:
    """The program with a name on the results in ``keep``, or on all results if None; also inside calls.

    A result's name is its position in the order of evaluation, so the same program always has the same names.
    """

    def run(*args: Any) -> Sequence[Any]:
        return _run_named(closed, args, keep, iter(range(1 << 62)))

    return run


def kept_only(closed: core.ClosedJaxpr, keep: frozenset[str], *, in_scan: bool) -> Body:
    """The program under ``jax.checkpoint``.

    Args:
        closed: the program.
        keep: names of the results that it keeps besides its inputs.
        in_scan: whether it runs inside a scan, where it needs no barriers against common-subexpression elimination.
    """
    policy = jax.checkpoint_policies.save_only_these_names(*sorted(keep))
    return jax.checkpoint(named(closed, keep), policy=policy, prevent_cse=not in_scan)


def _run_named(
    closed: core.ClosedJaxpr, args: Sequence[Any], keep: frozenset[str] | None, counter: Iterator[int]
) -> list[Any]:
    env: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(closed.jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else env[atom]

    for eqn in closed.jaxpr.eqns:
        inner, given = body_of(eqn), [read(a) for a in eqn.invars]
        with eqn.ctx.manager:
            if inner is not None and eqn.primitive.name in CALLS:
                out = constrained(eqn, _inner_body(inner, keep, counter), given)
            else:
                out = [_name(value, keep, next(counter)) for value in bind(eqn, given)]
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(a) for a in closed.jaxpr.outvars]


def _inner_body(inner: core.ClosedJaxpr, keep: frozenset[str] | None, counter: Iterator[int]) -> Body:
    return lambda *args: _run_named(inner, args, keep, counter)


def _name(value: Any, keep: frozenset[str] | None, number: int) -> Any:
    label = f"{PREFIX}{number}"
    if keep is None:
        plain = isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
        return _named(value, label) if plain else value
    return _named(value, label) if label in keep else value


def graph_of(region: Region) -> Graph:
    """The graph of a region, from its linearisation."""
    avals = [v.aval for v in region.closed.jaxpr.invars]
    varied = [i.varied and is_real(a) for i, a in zip(region.inputs, avals, strict=True)]
    forward, order = _linearised(region.closed, avals, varied)
    return _Builder(region).build(forward, order)


def _linearised(closed: core.ClosedJaxpr, avals: Sequence[Any], varied: Sequence[bool]) -> tuple[core.Jaxpr, list[int]]:
    """The forward pass, whose outputs are the program's and then what the backward pass needs; and the order of inputs."""
    body = named(closed, None)
    order = sorted(range(len(avals)), key=lambda i: not varied[i])  # varied inputs first
    place = {index: position for position, index in enumerate(order)}
    active = sum(varied)

    def forward(*values: Any) -> Any:
        def of_active(*some: Any) -> Any:
            given = [*some, *values[active:]]
            return body(*[given[place[i]] for i in range(len(avals))])

        return jax.vjp(of_active, *values[:active])

    return jax.make_jaxpr(forward)(*shapes_of([avals[i] for i in order])).jaxpr, order


class _Builder:
    """Turns a linearised forward pass into a graph."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._values: list[Value] = []
        self._operations: list[Operation] = []
        self._index: dict[Any, int] = {}
        self._stable: list[bool] = []
        self._same: dict[int, int] = {}  # a named value shares memory with the value before it was named

    def build(self, forward: core.Jaxpr, order: Sequence[int]) -> Graph:
        for variable, number in zip(forward.invars, order, strict=True):
            given = self._region.inputs[number]
            single = bytes_of(variable.aval)
            self._add(variable, Value(single, single * given.held, None, None), stable=given.stable)
        for variable in forward.constvars:
            self._add(variable, Value(bytes_of(variable.aval), 0, None, None), stable=True)
        results = len(self._region.closed.jaxpr.outvars)
        in_forward = ancestors(forward, forward.outvars[:results])
        for eqn in forward.eqns:
            self._operation(eqn, in_forward=id(eqn) in in_forward)
        needed = {self._index[v] for v in forward.outvars[results:] if isinstance(v, core.Var)}
        everything = {self._same.get(i, i) for i in needed}
        return Graph(
            tuple(self._values),
            tuple(self._operations),
            frozenset(needed),
            sum(self._values[i].kept_bytes for i in everything),
        )

    def _operation(self, eqn: core.JaxprEqn, *, in_forward: bool) -> None:
        inputs = tuple(self._index[v] for v in eqn.invars if isinstance(v, core.Var))
        stable = all(self._stable[i] for i in inputs)
        repeats = self._region.once if stable else self._region.repeats
        producer, label = len(self._operations), _label(eqn)
        moved = sum(bytes_of(v.aval) for v in eqn.outvars)
        # What only the backward pass reads is computed once in either pass, so leaving it to the backward pass is free.
        times = self._region.repeats if in_forward else 0
        step = Operation(inputs, flops_of_equation(eqn) * times, 0 if label else moved * times, None if label else eqn)
        self._operations.append(step)
        for variable in eqn.outvars:
            single = bytes_of(variable.aval)
            self._add(variable, Value(single, single * repeats, label, producer), stable=stable)
        if label:
            self._same[self._index[eqn.outvars[0]]] = self._same.get(inputs[0], inputs[0]) if inputs else -1

    def _add(self, variable: Any, value: Value, *, stable: bool) -> None:
        self._index[variable] = len(self._values)
        self._values.append(value)
        self._stable.append(stable)


def _label(eqn: core.JaxprEqn) -> str | None:
    name = eqn.params["name"] if eqn.primitive.name == "name" else ""
    return name if name.startswith(PREFIX) else None
