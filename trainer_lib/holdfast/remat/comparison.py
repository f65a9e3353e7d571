"""Rows of reports: named policies beside the choice, and the front of the cheapest choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from holdfast.remat.anatomy import Anatomy, dissect
from holdfast.remat.checks import require_callable, require_int
from holdfast.remat.choice import outcome
from holdfast.remat.combine import keep_all, sample
from holdfast.remat.graph import Graph
from holdfast.remat.measure import compiled_bytes, measure
from holdfast.remat.remat_policies import Policy, dots, nothing, require_policy
from holdfast.remat.report import Report, Row
from holdfast.remat.traced_program import Body

NAMED: Final[Mapping[str, Policy]] = MappingProxyType(
    {"nothing": nothing(), "dots": dots(), "dots(batch=False)": dots(batch=False)}
)
"""The policies that every plan is compared with."""

_FRONT_POINTS: Final = 16
_FRONT_SECONDS: Final = 0.5


def compare(
    function: Callable[..., Any],
    *args: Any,
    policies: Mapping[str, Policy] = NAMED,
    argnums: int | tuple[int, ...] = 0,
    shards: int = 1,
    compiled: bool = False,
) -> Report:
    """What ``function`` keeps and computes with each of the policies on each of its regions; see ``plan``.

    ``compiled``: with the compiler's account of the temporaries, which takes a compilation per row.
    """
    require_callable("function", function)
    require_int("shards", shards, minimum=1)
    for name, policy in policies.items():
        require_policy(f"policies[{name!r}]", policy)
    anatomy = dissect(function, args, argnums)
    none = keep_all(anatomy.groups)
    rows = [row_of(anatomy, "none", anatomy.body(none), 0, shards)]
    rows += [named_row(anatomy, name, policy, shards) for name, policy in policies.items()]
    bodies = [anatomy.body(none), *(anatomy.policy_body(p) for p in policies.values())]
    if compiled:
        rows = [
            replace(r, compiled_bytes=compiled_bytes(b, anatomy.leaves, anatomy.active))
            for r, b in zip(rows, bodies, strict=True)
        ]
    return Report(tuple(rows), notes=anatomy.notes(confirmed=compiled))


def row_of(anatomy: Anatomy, name: str, body: Body, working_bytes: int, shards: int) -> Row:
    """The row of one body, without a compilation."""
    found = measure(body, anatomy.program.avals, anatomy.active)
    return Row(
        name=name,
        kept_bytes=found.kept_bytes // shards,
        predicted_bytes=(found.kept_bytes + working_bytes) // shards,
        compiled_bytes=None,
        recomputed_flops=found.flops - anatomy.everything.flops,
        flops_ratio=found.flops / max(anatomy.everything.flops, 1),
    )


def named_row(anatomy: Anatomy, name: str, policy: Policy, shards: int) -> Row:
    """The row of one policy on all regions."""
    return row_of(anatomy, name, anatomy.policy_body(policy), _working_bytes(anatomy, policy), shards)


def _working_bytes(anatomy: Anatomy, policy: Policy) -> int:
    """What is back at once under a policy while the backward pass of one region runs."""
    graphs = [group.graph for group in anatomy.groups]
    return max(outcome(graph, kept_by(graph, policy)).working_bytes for graph in graphs)


def kept_by(graph: Graph, policy: Policy) -> frozenset[int]:
    """The values of a region that a policy keeps. What it moves to the host has to come back, so it is not kept here."""
    answer = policy.jax_policy()
    keep: set[int] = set()
    for index, value in enumerate(graph.values):
        operation = None if value.producer is None else graph.operations[value.producer]
        if operation is None:
            continue
        eqn = operation.equation
        if eqn is None:  # a value with a name is the value before it was named
            named = operation.inputs and operation.inputs[0] in keep
        else:
            case = answer(eqn.primitive, *[v.aval for v in eqn.invars], **eqn.params)
            named = case is True or type(case).__name__ == "SaveableType"
        if named:
            keep.add(index)
    return frozenset(keep)


def front_of(anatomy: Anatomy) -> list[tuple[int, int]]:
    """(Predicted bytes, recomputed FLOPs) of the cheapest choices from the fewest bytes to all; over all shards."""
    found = sample(anatomy.groups, points=_FRONT_POINTS, seconds=_FRONT_SECONDS)
    points = sorted({(s.total_bytes + anatomy.fixed_bytes, s.flops) for s in found})
    front: list[tuple[int, int]] = []
    for point in points:
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
