"""Rows of reports: named policies beside the plan's choice, and the front of the cheapest choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from holdfast.remat.analysis import ProgramAnalysis, analyse
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
    """A report of what ``function`` keeps and recomputes under each of several policies on all of its regions.

    Args:
        function: pure, of pytrees of arrays, with regions as for ``plan``.
        args: examples of its arguments, arrays or ``jax.ShapeDtypeStruct``.
        policies: the policies to compare, by name.
        argnums: positions of the arguments to differentiate by.
        shards: number of devices among which activations are divided evenly.
        compiled: also report the compiler's temporaries, which takes one compilation per row.

    Raises:
        ValueError: the program has no region, or an argument is out of range.
        TypeError: an argument has the wrong type.
    """
    require_callable("function", function)
    require_int("shards", shards, minimum=1)
    for name, policy in policies.items():
        require_policy(f"policies[{name!r}]", policy)
    analysis = analyse(function, args, argnums)
    none = keep_all(analysis.groups)
    rows = [row_of(analysis, "none", analysis.body(none), 0, shards)]
    rows += [named_row(analysis, name, policy, shards) for name, policy in policies.items()]
    bodies = [analysis.body(none), *(analysis.policy_body(p) for p in policies.values())]
    if compiled:
        rows = [
            replace(r, compiled_bytes=compiled_bytes(b, analysis.leaves, analysis.active))
            for r, b in zip(rows, bodies, strict=True)
        ]
    return Report(tuple(rows), notes=analysis.notes(confirmed=compiled))


def row_of(analysis: ProgramAnalysis, name: str, body: Body, working_bytes: int, shards: int) -> Row:
    """The row of one choice, without a compilation.

    Args:
        analysis: the function's regions.
        name: of the row.
        body: the function with the choice applied.
        working_bytes: recomputed bytes held at once, over all shards.
        shards: number of devices among which activations are divided evenly.
    """
    found = measure(body, analysis.program.avals, analysis.active)
    return Row(
        name=name,
        kept_bytes=found.kept_bytes // shards,
        predicted_bytes=(found.kept_bytes + working_bytes) // shards,
        compiled_bytes=None,
        recomputed_flops=found.flops - analysis.everything.flops,
        flops_ratio=found.flops / max(analysis.everything.flops, 1),
    )


def named_row(analysis: ProgramAnalysis, name: str, policy: Policy, shards: int) -> Row:
    """The row of one policy on all regions, without a compilation.

    Args:
        analysis: the function's regions.
        name: of the row.
        policy: the policy of every region.
        shards: number of devices among which activations are divided evenly.
    """
    return row_of(analysis, name, analysis.policy_body(policy), _working_bytes(analysis, policy), shards)


def _working_bytes(analysis: ProgramAnalysis, policy: Policy) -> int:
    """Bytes recomputed and held at once under a policy, while the backward pass of one region runs."""
    graphs = [group.graph for group in analysis.groups]
    return max(outcome(graph, kept_by(graph, policy)).working_bytes for graph in graphs)


def kept_by(graph: Graph, policy: Policy) -> frozenset[int]:
    """Indices of the values that a policy keeps on the device; values that it moves to the host are not among them."""
    answer = policy.jax_policy()
    keep: set[int] = set()
    for index, value in enumerate(graph.values):
        operation = None if value.producer is None else graph.operations[value.producer]
        if operation is None:
            continue
        eqn = operation.equation
        if eqn is None:  # naming a value makes no new one
            named = operation.inputs and operation.inputs[0] in keep
        else:
            case = answer(eqn.primitive, *[v.aval for v in eqn.invars], **eqn.params)
            named = case is True or type(case).__name__ == "SaveableType"
        if named:
            keep.add(index)
    return frozenset(keep)


def front_of(analysis: ProgramAnalysis) -> list[tuple[int, int]]:
    """(Predicted bytes, recomputed FLOPs) of the cheapest choices, from the fewest bytes to all; over all shards."""
    found = sample(analysis.groups, points=_FRONT_POINTS, seconds=_FRONT_SECONDS)
    points = sorted({(s.total_bytes + analysis.fixed_bytes, s.flops) for s in found})
    front: list[tuple[int, int]] = []
    for point in points:
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
