"""The cheapest set of kept values under a budget, found in the traced program and confirmed by the compiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import jax

from holdfast.remat.anatomy import Anatomy, dissect
from holdfast.remat.checks import require_callable, require_int
from holdfast.remat.combine import Selection, keep_all, keep_least, select
from holdfast.remat.comparison import NAMED, front_of, named_row, row_of
from holdfast.remat.measure import compiled_bytes, shapes_of
from holdfast.remat.memory_budget import Budget, DoesNotFit, require_budget
from holdfast.remat.report import Report, Row
from holdfast.remat.traced_program import Body, TracedProgram

SEARCH_SECONDS: Final = 1.5
"""Limit of the search, without traces and compilations."""

_ATTEMPTS: Final = 4
"""Compilations of candidates before the budget is called too small."""

NONE, CHOSEN = "none", "automatic"


@dataclass(frozen=True)
class Kept:
    """What one region of the program keeps. ``labels`` None: everything; see Plan.describe."""

    region: str
    labels: frozenset[str] | None
    kept_bytes: int
    recomputed_flops: int


@dataclass(frozen=True)
class Plan:
    """A function whose backward pass fits a budget. Called as the function that it was made from; differentiable.

    It is bound to the shapes and dtypes that it was made for. ``report`` says what was chosen from and why.
    """

    report: Report
    regions: tuple[Kept, ...]
    _program: TracedProgram = field(repr=False)
    _body: Body = field(repr=False)

    def __call__(self, *args: Any) -> Any:
        """The function's result. Raises TypeError if an argument's structure, shape or dtype is another."""
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
    """Chooses what ``function`` keeps for its gradient by ``argnums``, such that it fits and recomputes least.

    The choice is made per region: a marked block (see ``block``) or the body of a scan. ``args`` are examples: arrays
    or ``jax.ShapeDtypeStruct``. ``shards``: devices among which activations are divided evenly; a function inside
    ``jax.shard_map`` sees one device's share already. ``confirm``: compile ahead of time, measure, and tighten until
    the compiler agrees; None does so where its figures mean something, which on CPUs is for scans alone.

    Raises:
        DoesNotFit: no choice fits; says the least that would.
        ValueError, TypeError: an argument is wrong, or the program has no region.
    """
    require_callable("function", function)
    require_budget(budget)
    require_int("shards", shards, minimum=1)
    if confirm not in {None, True, False}:
        raise TypeError(f"confirm: found {confirm!r}, allowed: None, True or False")
    return _Planner(dissect(function, args, argnums), budget, shards, confirm).plan()


def automatic(
    function: Callable[..., Any],
    *,
    budget: Budget,
    argnums: int | tuple[int, ...] = 0,
    shards: int = 1,
    confirm: bool | None = None,
) -> Callable[..., Any]:
    """``function``, planned at its first call for each set of shapes; see ``plan``."""
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
    """One search. Bytes inside are over all shards, as the traced program sees them; those in the report are per shard."""

    def __init__(self, anatomy: Anatomy, budget: Budget, shards: int, confirm: bool | None) -> None:  # noqa: FBT001
        self._anatomy, self._budget, self._shards = anatomy, budget, shards
        self._confirm = anatomy.compiled_means_something if confirm is None else confirm
        if confirm and not anatomy.compiled_means_something:
            raise ValueError(
                "confirm: found True, allowed on CPUs: None or False unless all regions are in scans; the CPU compiler"
                " orders unrolled layers so that rematerialisation frees nothing"
            )
        self._search_seconds = anatomy.seconds

    def plan(self) -> Plan:
        everything = self._row(NONE, keep_all(self._anatomy.groups), confirm=self._confirm)
        reference = everything.predicted_bytes if everything.compiled_bytes is None else everything.compiled_bytes
        budget_bytes = self._budget.of(reference)
        selection, chosen = self._fitting(budget_bytes)
        anatomy = self._anatomy
        rows = [everything, *(named_row(anatomy, n, p, self._shards) for n, p in NAMED.items()), chosen]
        report = Report(
            rows=tuple(rows),
            chosen=CHOSEN,
            budget_bytes=int(budget_bytes),
            front=tuple((b // self._shards, f) for b, f in front_of(anatomy)),
            search_seconds=self._search_seconds,
            bound_flops=selection.bound_flops,
            notes=anatomy.notes(confirmed=self._confirm),
        )
        regions = tuple(
            Kept(anatomy.names[path], c.keep, c.kept_bytes, c.flops) for path, c in sorted(selection.choices.items())
        )
        return Plan(report, regions, anatomy.program, anatomy.body(selection))

    def _fitting(self, budget_bytes: float) -> tuple[Selection, Row]:
        """A selection that fits, by prediction and, if asked for, by the compiler's account."""
        overhead = (
            0  # what the compiler takes beyond the prediction: known only for a candidate, and much less than for none
        )
        for _ in range(_ATTEMPTS):
            selection = self._select(budget_bytes - overhead)
            if selection is None:
                break
            row = self._row(CHOSEN, selection, confirm=self._confirm)
            if row.compiled_bytes is None or row.compiled_bytes <= budget_bytes:
                return selection, row
            overhead += row.compiled_bytes - int(budget_bytes)
        least = self._row("least", keep_least(self._anatomy.groups), confirm=self._confirm)
        found = least.predicted_bytes if least.compiled_bytes is None else least.compiled_bytes
        basis = "predicted" if least.compiled_bytes is None else "by the compiler's account"
        if least.compiled_bytes is not None and found <= budget_bytes:
            return keep_least(self._anatomy.groups), Row(**{**least.__dict__, "name": CHOSEN})
        raise DoesNotFit(budget_bytes, found, basis)

    def _select(self, budget_bytes: float) -> Selection | None:
        began = time.monotonic()
        room = budget_bytes * self._shards - self._anatomy.fixed_bytes
        found = select(self._anatomy.groups, room, seconds=SEARCH_SECONDS) if room > 0 else None
        self._search_seconds += time.monotonic() - began
        return found

    def _row(self, name: str, selection: Selection, *, confirm: bool) -> Row:
        row = row_of(self._anatomy, name, self._anatomy.body(selection), selection.working_bytes, self._shards)
        if not confirm:
            return row
        body, active = self._anatomy.body(selection), self._anatomy.active
        return Row(**{**row.__dict__, "compiled_bytes": compiled_bytes(body, self._anatomy.leaves, active)})
