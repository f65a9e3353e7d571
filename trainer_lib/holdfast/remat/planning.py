"""The cheapest set of kept values under a budget, found in the traced program and confirmed by the compiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import jax

from holdfast.remat.analysis import ProgramAnalysis, analyse
from holdfast.remat.checks import require_callable, require_int
from holdfast.remat.combine import Selection, keep_all, keep_least, select
from holdfast.remat.comparison import NAMED, front_of, named_row, row_of
from holdfast.remat.measure import compiled_bytes, shapes_of
from holdfast.remat.memory_budget import Budget, DoesNotFit, require_budget
from holdfast.remat.report import Report, Row
from holdfast.remat.traced_program import Body, TracedProgram

SEARCH_SECONDS: Final = 1.5
"""Limit of the search in seconds, without traces and compilations."""

_ATTEMPTS: Final = 4
"""How many candidates are compiled before the budget counts as too small."""

NONE, CHOSEN = "none", "automatic"


@dataclass(frozen=True)
class Kept:
    """What one region of the program keeps: the values named in ``labels``; None for everything."""

    region: str
    labels: frozenset[str] | None
    kept_bytes: int
    recomputed_flops: int


@dataclass(frozen=True)
class Plan:
    """A differentiable function whose backward pass fits a budget; it is called like the function it was made from.

    It accepts only the shapes and dtypes that it was made for. ``report`` shows the alternatives.
    """

    report: Report
    regions: tuple[Kept, ...]
    _program: TracedProgram = field(repr=False)
    _body: Body = field(repr=False)

    def __call__(self, *args: Any) -> Any:
        """The function's result. Raises TypeError if an argument's structure, shape or dtype differs from the plan's."""
        leaves, tree = jax.tree.flatten(args)
        if tree != self._program.in_tree:
            raise TypeError(f"arguments: found the structure {tree}, allowed: {self._program.in_tree}")
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(args)[0]]
        for path, leaf, aval in zip(paths, leaves, self._program.avals, strict=True):
            found = jax.typeof(leaf)
            if (found.shape, found.dtype) != (aval.shape, aval.dtype):
                raise TypeError(f"args{path}: found {found.str_short()}, allowed: {aval.str_short()}")
        return jax.tree.unflatten(self._program.out_tree, self._body(*leaves))


def plan(
    function: Callable[..., Any],
    *args: Any,
    budget: Budget,
    argnums: int | tuple[int, ...] = 0,
    shards: int = 1,
    confirm: bool | None = None,
) -> Plan:
    """Choose what ``function`` keeps for its gradient, so that it fits the budget and recomputes the fewest FLOPs.

    The choice is made per region: a marked block (see ``block``) or the body of a scan.

    Args:
        function: pure, of pytrees of arrays.
        args: examples of its arguments, arrays or ``jax.ShapeDtypeStruct``.
        budget: ``bytes_per_device(count)`` or ``fraction(share)``.
        argnums: positions of the arguments to differentiate by.
        shards: number of devices among which activations are divided evenly; 1 inside ``jax.shard_map``, where shapes
            are one device's share already.
        confirm: compile ahead of time, measure, and tighten the choice until the compiler's figure fits too. None does
            so where the compiler's figures are valid, which on CPUs is for scans alone. Without it the prediction in the
            report must fit.

    Raises:
        DoesNotFit: no choice fits; gives the smallest need that was found.
        ValueError: an argument is out of range, or the program has no region.
        TypeError: an argument has the wrong type.
    """
    require_callable("function", function)
    require_budget(budget)
    require_int("shards", shards, minimum=1)
    if confirm not in {None, True, False}:
        raise TypeError(f"confirm: found {confirm!r}, allowed: None, True or False")
    return _Planner(analyse(function, args, argnums), budget, shards, confirm).plan()


def automatic(
    function: Callable[..., Any],
    *,
    budget: Budget,
    argnums: int | tuple[int, ...] = 0,
    shards: int = 1,
    confirm: bool | None = None,
) -> Callable[..., Any]:
    """``function``, planned at its first call for each set of shapes and dtypes.

    Args:
        function: pure, of pytrees of arrays.
        budget: ``bytes_per_device(count)`` or ``fraction(share)``.
        argnums: positions of the arguments to differentiate by.
        shards: number of devices among which activations are divided evenly.
        confirm: as for ``plan``.

    Raises:
        TypeError: an argument has the wrong type. A call raises as ``plan``.
    """
    require_callable("function", function)
    require_budget(budget)
    plans: dict[object, Plan] = {}

    def call(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        shapes = shapes_of([jax.typeof(leaf) for leaf in leaves])
        key = tree, tuple((s.shape, s.dtype, s.weak_type) for s in shapes)
        if key not in plans:
            example = jax.tree.unflatten(tree, shapes)
            plans[key] = plan(function, *example, budget=budget, argnums=argnums, shards=shards, confirm=confirm)
        return plans[key](*args)

    return call


class _Planner:
    """One search. Bytes are over all shards, as in the traced program; the report has them per shard."""

    def __init__(self, analysis: ProgramAnalysis, budget: Budget, shards: int, confirm: bool | None) -> None:  # noqa: FBT001
        self._analysis, self._budget, self._shards = analysis, budget, shards
        self._confirm = analysis.compiler_figures_are_valid if confirm is None else confirm
        if confirm and not analysis.compiler_figures_are_valid:
            raise ValueError(
                "confirm: found True, allowed on CPUs: None or False unless all regions are in scans; the CPU compiler"
                " orders unrolled layers so that rematerialisation frees nothing"
            )
        self._search_seconds = analysis.seconds

    def plan(self) -> Plan:
        everything = self._row(NONE, keep_all(self._analysis.groups), confirm=self._confirm)
        budget_bytes = self._budget.of(everything.figure_bytes)
        selection, chosen = self._fitting(budget_bytes)
        analysis = self._analysis
        rows = [everything, *(named_row(analysis, n, p, self._shards) for n, p in NAMED.items()), chosen]
        report = Report(
            rows=tuple(rows),
            chosen=CHOSEN,
            budget_bytes=int(budget_bytes),
            front=tuple((b // self._shards, f) for b, f in front_of(analysis)),
            search_seconds=self._search_seconds,
            bound_flops=selection.bound_flops,
            notes=analysis.notes(confirmed=self._confirm),
        )
        regions = tuple(
            Kept(analysis.names[path], c.keep, c.kept_bytes, c.flops) for path, c in sorted(selection.choices.items())
        )
        return Plan(report, regions, analysis.program, analysis.body(selection))

    def _fitting(self, budget_bytes: float) -> tuple[Selection, Row]:
        """A selection that fits: by the compiler's figures if confirmation is on, otherwise by the prediction of its row."""
        # What the figure shows beyond the search's own sum; only compiling or tracing a candidate shows it.
        overhead = 0
        bounds: list[float | None] = []  # the first one holds for the whole budget, later ones for what is left of it
        for _ in range(_ATTEMPTS):
            selection = self._select(budget_bytes - overhead)
            if selection is None:
                break
            bounds.append(selection.bound_flops)
            row = self._row(CHOSEN, selection, confirm=self._confirm)
            if row.figure_bytes <= budget_bytes:
                return replace(selection, bound_flops=bounds[0]), row
            overhead += row.figure_bytes - int(budget_bytes)
        selection = keep_least(self._analysis.groups)
        least = self._row(CHOSEN, selection, confirm=self._confirm)
        if least.figure_bytes <= budget_bytes:
            return selection, least
        basis = "predicted" if least.compiled_bytes is None else "by the compiler's figures"
        raise DoesNotFit(budget_bytes, least.figure_bytes, basis)

    def _select(self, budget_bytes: float) -> Selection | None:
        began = time.monotonic()
        room = budget_bytes * self._shards - self._analysis.fixed_bytes
        found = select(self._analysis.groups, room, seconds=SEARCH_SECONDS) if room > 0 else None
        self._search_seconds += time.monotonic() - began
        return found

    def _row(self, name: str, selection: Selection, *, confirm: bool) -> Row:
        row = row_of(self._analysis, name, self._analysis.body(selection), selection.working_bytes, self._shards)
        if not confirm:
            return row
        body, active = self._analysis.body(selection), self._analysis.active
        return Row(**{**row.__dict__, "compiled_bytes": compiled_bytes(body, self._analysis.leaves, active)})
