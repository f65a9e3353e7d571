"""A function as a traced program, and its evaluation with replaced bodies for some of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
from jax.extend import core

from holdfast.remat.wrap import Mark

Path = tuple[int, ...]
"""Position of an equation: indices from the outermost program inwards."""

Body = Callable[..., Sequence[Any]]
"""A program as a function from flat inputs to flat outputs."""

Rebuild = Callable[[core.ClosedJaxpr, bool], Body]
"""Makes a new body from a part's program. The flag is True inside a scan, where no barriers are needed."""

CALLS: Final = frozenset({"jit", "pjit", "closed_call", "core_call"})
_with_sharding: Final[Callable[[Any, Any], Any]] = jax.lax.with_sharding_constraint

REMAT: Final = frozenset({"remat", "remat2", "checkpoint"})


@dataclass(frozen=True)
class TracedProgram:
    """A traced function: flat in, flat out. ``avals`` are shapes and dtypes of the inputs' leaves."""

    closed: core.ClosedJaxpr
    in_tree: Any
    out_tree: Any
    avals: tuple[Any, ...]


def trace(function: Callable[..., Any], args: tuple[Any, ...]) -> TracedProgram:
    """The program of ``function`` at the shapes and dtypes of ``args``, which may be ``jax.ShapeDtypeStruct``.

    Raises:
        ValueError: the function changes a module that it was passed; the change would be lost.
    """
    leaves, in_tree = jax.tree.flatten(args)
    out_tree: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        inputs = jax.tree.unflatten(in_tree, values)
        out, tree = jax.tree.flatten(function(*inputs))
        out_tree.append(tree)
        return [*jax.tree.leaves(inputs), *out]

    closed = jax.make_jaxpr(flat)(*leaves)
    jaxpr = closed.jaxpr
    count = len(jaxpr.outvars) - out_tree[-1].num_leaves
    after, results = jaxpr.outvars[:count], jaxpr.outvars[count:]
    if count != len(leaves) or any(_source(jaxpr, a) is not b for a, b in zip(after, jaxpr.invars, strict=True)):
        raise ValueError(
            "function: found one that changes its arguments in place (variables of an NNX module?), allowed: one"
            " that returns its changes, or a module in evaluation mode"
        )
    avals = tuple(v.aval for v in jaxpr.invars)
    pure = jaxpr.replace(outvars=results, debug_info=jaxpr.debug_info.with_unknown_names())
    return TracedProgram(core.ClosedJaxpr(pure, closed.consts), in_tree, out_tree[-1], avals)


def _source(jaxpr: core.Jaxpr, atom: Any) -> Any:
    """The origin of a value that is only passed through calls, as NNX passes variables; None if a call computes it."""
    for eqn in reversed(jaxpr.eqns):
        if not isinstance(atom, core.Var) or atom not in eqn.outvars:
            continue
        inner = body_of(eqn) if eqn.primitive.name != "scan" else None
        if inner is None:
            return None
        origin = _source(inner.jaxpr, inner.jaxpr.outvars[eqn.outvars.index(atom)])
        if origin not in inner.jaxpr.invars:
            return None
        atom = eqn.invars[inner.jaxpr.invars.index(origin)]
    return atom


def body_of(eqn: core.JaxprEqn) -> core.ClosedJaxpr | None:
    """The program inside a call, a checkpointed function or a scan; None for all other equations."""
    name = eqn.primitive.name
    if name in CALLS or name in REMAT or name == "scan":
        inner: Any = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        return inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
    return None


def mark_of(eqn: core.JaxprEqn) -> str | None:
    """The name of the marked block that an equation is, if it is one."""
    policy = eqn.params.get("policy") if eqn.primitive.name in REMAT else None
    return policy.name if isinstance(policy, Mark) else None


def has_mark(jaxpr: core.Jaxpr) -> bool:
    """Whether a marked block is in the program, at any depth."""
    for eqn in jaxpr.eqns:
        inner = body_of(eqn)
        if inner is not None and (mark_of(eqn) is not None or has_mark(inner.jaxpr)):
            return True
    return False


@dataclass(frozen=True)
class Rewriter:
    """Evaluates a program with replaced ``bodies`` for the parts at their paths.

    Marked blocks without a replacement are evaluated as if they had no mark; with ``keep_marks`` they stay as they are.
    """

    bodies: Mapping[Path, Rebuild]
    keep_marks: bool = False

    def run(
        self, closed: core.ClosedJaxpr, args: Sequence[Any], path: Path = (), *, in_scan: bool = False
    ) -> list[Any]:
        """The outputs of a program.

        Args:
            closed: the program.
            args: its flat inputs.
            path: where it is in the outermost program.
            in_scan: whether it runs inside a scan.
        """
        env: dict[core.Var, Any] = {}

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else env[atom]

        env.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        env.update(zip(closed.jaxpr.invars, args, strict=True))
        for index, eqn in enumerate(closed.jaxpr.eqns):
            with eqn.ctx.manager:
                out = self._equation(eqn, [read(a) for a in eqn.invars], (*path, index), in_scan=in_scan)
            env.update(zip(eqn.outvars, out, strict=True))
        return [read(a) for a in closed.jaxpr.outvars]

    def _equation(self, eqn: core.JaxprEqn, inputs: list[Any], path: Path, *, in_scan: bool) -> Sequence[Any]:
        inner = body_of(eqn)
        rebuild = self.bodies.get(path)
        if inner is None or not (rebuild or self._concerned(eqn, inner, path)):
            return bind(eqn, inputs)
        if eqn.primitive.name == "scan":
            step = rebuild(inner, True) if rebuild else lambda *a: self.run(inner, a, path, in_scan=True)
            return scan_again(eqn, step, inputs)
        if rebuild:
            return rebuild(inner, in_scan)(*inputs)
        return constrained(eqn, lambda *a: self.run(inner, a, path, in_scan=in_scan), inputs)

    def _concerned(self, eqn: core.JaxprEqn, inner: core.ClosedJaxpr, path: Path) -> bool:
        """Whether something inside the equation changes."""
        if any(p[: len(path)] == path for p in self.bodies):
            return True
        return not self.keep_marks and (mark_of(eqn) is not None or has_mark(inner.jaxpr))


def bind(eqn: core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of one equation as it stands."""
    primitive: Any = eqn.primitive
    out = primitive.bind(*inputs, **primitive.get_bind_params(eqn.params))
    return out if primitive.multiple_results else [out]


def scan_again(eqn: core.JaxprEqn, step: Body, inputs: Sequence[Any]) -> Sequence[Any]:
    """A scan with another body.

    Args:
        eqn: the scan.
        step: the new body, from flat inputs to flat outputs like the old one.
        inputs: the scan's flat inputs.
    """
    consts_count, carry_count = eqn.params["num_consts"], eqn.params["num_carry"]
    consts, carry = inputs[:consts_count], inputs[consts_count : consts_count + carry_count]
    xs = inputs[consts_count + carry_count :]

    def body(values: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        out = list(step(*consts, *values, *x))
        return out[:carry_count], out[carry_count:]

    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    last, ys = jax.lax.scan(body, list(carry), list(xs), **options)
    return [*last, *ys]


def constrained(eqn: core.JaxprEqn, body: Body, inputs: Sequence[Any]) -> Sequence[Any]:
    """A call with another body, under the shardings that the call requires.

    Args:
        eqn: the call.
        body: the new body.
        inputs: the call's flat inputs.
    """

    def apply(values: Sequence[Any], which: str) -> list[Any]:
        shardings = eqn.params.get(which) or [None] * len(values)
        return [
            _with_sharding(v, s) if isinstance(s, jax.sharding.Sharding) else v
            for v, s in zip(values, shardings, strict=True)
        ]

    return apply(body(*apply(inputs, "in_shardings")), "out_shardings")
