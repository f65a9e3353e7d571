"""The cheapest choices for a few regions, found together as an integer program.

A value is available to the backward pass if it is kept or if its operation runs again; running an operation again needs its
inputs to be available. For each region, let z = 1 if it keeps everything, s = 1 for a kept value, r = 1 for a repeated
operation, and w the most bytes that are recomputed and held at once in the backward pass of one region:

    minimise    sum of flops * r
    such that   z + s + r(producer) >= 1    for each value that the region's backward pass reads
                    s + r(producer) >= r    for each input of an operation
                w >= bytes read * (1 - z) - bytes of kept values among them
                sum of (bytes * s) + sum of (bytes of everything * z) + w <= cap

Only z and s must be integers; r then is one in the optimum. The solver is HiGHS, which comes with SciPy, a dependency of JAX.
If its time ends first, its bound limits how far the solution is from the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from holdfast.remat.choice import RegionChoice, everything_of, is_input, outcome
from holdfast.remat.graph import Graph

_TIE: Final = 1e-6
"""Weight of bytes relative to FLOPs: of two choices with equal FLOPs, the one that moves and keeps less wins."""

_GAP: Final = 1e-3
"""A search ends at this relative distance from the best."""

Entry = tuple[int, int, float]
"""Row, column, coefficient."""


@dataclass(frozen=True)
class RegionVariables:
    """The variables of one region: z, then s of each slot (values that can be kept, inputs), then r of each operation."""

    graph: Graph
    slots: tuple[int, ...]
    rows: tuple[tuple[tuple[int, float], ...], ...]
    lower: tuple[float, ...]

    @property
    def width(self) -> int:
        """Number of variables."""
        return 1 + len(self.slots) + len(self.graph.operations)

    def kept(self) -> npt.NDArray[np.float64]:
        """Bytes that each variable keeps, shape (width,)."""
        slots = [self.graph.values[i].kept_bytes for i in self.slots]
        return np.array([self.graph.everything_bytes, *slots, *[0] * len(self.graph.operations)], float)

    def flops(self) -> npt.NDArray[np.float64]:
        """FLOPs that each variable costs, with moved bytes as a tie-breaker, shape (width,)."""
        again = [o.flops + _TIE * o.moved_bytes for o in self.graph.operations]
        return np.array([0.0] * (1 + len(self.slots)) + again)

    def working(self) -> tuple[float, npt.NDArray[np.float64]]:
        """Bytes recomputed and held at once if nothing is kept, and how many of them each variable saves, shape (width,)."""
        graph = self.graph
        read = {i: graph.values[i].single_bytes for i in graph.needed if not is_input(graph, i)}
        total = float(sum(read.values()))
        spared = [read.get(i, 0) for i in self.slots]
        return total, np.array([total, *spared, *[0] * len(graph.operations)], float)

    def choice(self, solution: npt.NDArray[np.float64]) -> RegionChoice:
        """The choice that the values of the variables, shape (width,), stand for."""
        if solution[0] > 0.5:
            return everything_of(self.graph)
        kept = {i for i, s in zip(self.slots, solution[1:], strict=False) if s > 0.5}
        return outcome(self.graph, frozenset(i for i in kept if not is_input(self.graph, i)))


def part_of(graph: Graph) -> RegionVariables:
    """The variables and covering constraints of a region."""
    inputs = tuple(i for i, v in enumerate(graph.values) if v.producer is None and v.kept_bytes > 0)
    slots = graph.choosable + inputs
    column = {value: 1 + place for place, value in enumerate(slots)}
    first = 1 + len(slots)
    needed: dict[tuple[int | None, int], None] = {(None, value): None for value in sorted(graph.needed)}
    for number, operation in enumerate(graph.operations):
        needed.update({(number, value): None for value in operation.inputs})
    rows, lower = [], []
    for number_or_none, value in needed:
        producer = graph.values[value].producer
        if producer is None and value not in column:
            continue  # an argument of the program is always available
        row = [(column[value], 1.0)] if value in column else []
        row += [] if producer is None else [(first + producer, 1.0)]
        row.append((0, 1.0) if number_or_none is None else (first + number_or_none, -1.0))
        rows.append(tuple(row))
        lower.append(1.0 if number_or_none is None else 0.0)
    return RegionVariables(graph, slots, tuple(rows), tuple(lower))


@dataclass(frozen=True)
class Solution:
    """A choice per region, in order. ``bound_flops``: no choice that fits recomputes fewer."""

    choices: tuple[RegionChoice, ...]
    bound_flops: float


class Model:
    """Regions to solve together. ``copies``: how many of each the program has; all copies share one choice."""

    def __init__(self, parts: Sequence[RegionVariables], copies: Sequence[int]) -> None:
        self._parts = parts
        self._starts = [int(n) for n in np.cumsum([0, *(p.width for p in parts)])]
        self._kept = np.concatenate([n * p.kept() for p, n in zip(parts, copies, strict=True)])
        self._flops = np.concatenate([n * p.flops() for p, n in zip(parts, copies, strict=True)])
        whole = [[1] * (1 + len(p.slots)) + [0] * len(p.graph.operations) for p in parts]
        self._whole = np.array([w for some in whole for w in some] + [0])
        self._unit_bytes = max(float(self._kept.max(initial=0.0)), 1.0)
        self._unit_flops = max(float(self._flops.max(initial=0.0)), 1.0)
        self._constraint = self._constraints()

    def solve(self, cap_bytes: float, *, seconds: float) -> Solution | None:
        """The fewest FLOPs whose kept and working bytes are at most the cap; None if none was found in time."""
        objective = np.append(self._flops / self._unit_flops + self._kept / self._kept.sum().clip(1) * _TIE, 0.0)
        cap = LinearConstraint(np.append(self._kept / self._unit_bytes, 1.0)[None, :], -np.inf, self._scaled(cap_bytes))
        found = self._optimum(objective, [self._constraint, cap], self._whole, seconds)
        if found.x is None:
            return None
        choices = self._choices(found.x)
        if sum(c.kept_bytes for c in choices) > cap_bytes:
            return None  # within the solver's tolerance, not within the cap
        bound = 0.0 if found.mip_dual_bound is None else float(found.mip_dual_bound)
        return Solution(choices, max(bound - 2 * _TIE, 0.0) * self._unit_flops)

    def cheapest(self, price: float, working_price: float, *, seconds: float) -> Solution | None:
        """Minimise FLOPs plus the prices of kept and working bytes, without a cap.

        Args:
            price: FLOPs per kept byte.
            working_price: FLOPs per working byte.
            seconds: limit of the search.

        Returns:
            The solution, whose ``bound_flops`` is a lower bound of this sum; None if none was found in time.
        """
        unit = max(self._unit_flops, price * self._unit_bytes)
        objective = np.append(self._flops + price * self._kept, working_price * self._unit_bytes) / unit
        found = self._optimum(objective, [self._constraint], self._whole, seconds)
        if found.x is None or found.mip_dual_bound is None:
            return None
        return Solution(self._choices(found.x), max(float(found.mip_dual_bound) * unit * (1 - _TIE), 0.0))

    def bound(self, cap_bytes: float, *, seconds: float) -> float:
        """A lower bound on the FLOPs of every choice within the cap: the optimum if values could be kept in part.

        It also holds for copies with different choices, because their average is a choice of the relaxed program.
        """
        objective = np.append(self._flops / self._unit_flops, 0.0)
        cap = LinearConstraint(np.append(self._kept / self._unit_bytes, 1.0)[None, :], -np.inf, self._scaled(cap_bytes))
        found = self._optimum(objective, [self._constraint, cap], np.zeros_like(self._whole), seconds)
        return 0.0 if found.x is None else max(float(found.fun) * self._unit_flops, 0.0)

    def least(self, *, seconds: float) -> tuple[RegionChoice, ...]:
        """The choices of fewest kept and working bytes, whatever their FLOPs."""
        objective = np.append(self._kept / self._unit_bytes + self._flops / self._unit_flops * _TIE, 1.0)
        found = self._optimum(objective, [self._constraint], self._whole, seconds)
        if found.x is None:
            return tuple(outcome(p.graph, frozenset()) for p in self._parts)
        return self._choices(found.x)

    def _choices(self, solution: npt.NDArray[np.float64]) -> tuple[RegionChoice, ...]:
        return tuple(p.choice(solution[start:]) for p, start in zip(self._parts, self._starts, strict=False))

    def _scaled(self, value_bytes: float) -> float:
        return value_bytes / self._unit_bytes

    def _constraints(self) -> Any:
        """Covering constraints, and w at least the working bytes of each region; w is the last column."""
        entries: list[Entry] = []
        lower: list[float] = []
        last = self._starts[-1]
        for part, start in zip(self._parts, self._starts, strict=False):
            for row, low in zip(part.rows, part.lower, strict=True):
                entries.extend((len(lower), start + column, factor) for column, factor in row)
                lower.append(low)
            total, spared = part.working()
            entries.extend((len(lower), start + int(c), self._scaled(spared[c])) for c in np.flatnonzero(spared))
            entries.append((len(lower), last, 1.0))
            lower.append(self._scaled(total))
        rows, columns, factors = zip(*entries, strict=True)
        matrix = coo_array((factors, (rows, columns)), shape=(len(lower), last + 1)).tocsr()
        return LinearConstraint(matrix, np.array(lower), np.inf)

    def _optimum(self, objective: Any, constraints: list[Any], whole: Any, seconds: float) -> Any:
        upper = np.append(np.ones(self._starts[-1]), np.inf)
        options = {"time_limit": max(seconds, 0.01), "mip_rel_gap": _GAP}
        return milp(objective, constraints=constraints, integrality=whole, bounds=Bounds(0, upper), options=options)
