"""One choice for each region of a program: together they fit the budget and recompute the fewest FLOPs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from holdfast.remat.choice import RegionChoice, everything_of
from holdfast.remat.graph import Graph
from holdfast.remat.prices import Prices
from holdfast.remat.solve import Model, RegionVariables
from holdfast.remat.traced_program import Path

_OPTIONS: Final = 12
"""Number of choices prepared per kind of region, spread evenly over the logarithm of their bytes."""

_BUCKETS: Final = 8192
"""Resolution of the budget. Kept bytes are rounded up to it, so the budget always holds."""

_THRESHOLDS: Final = 12
"""Number of limits on working bytes to try."""

_TOGETHER: Final = 400
"""All regions are solved together, exactly, if they have at most this many values to choose from."""

_POLISHED: Final = 6
"""Number of regions that are solved once more, for exactly the room that the others leave."""


@dataclass(frozen=True)
class Group:
    """Regions that compute the same, such as the layers of a model."""

    paths: tuple[Path, ...]
    graph: Graph
    part: RegionVariables


@dataclass(frozen=True)
class Selection:
    """A choice for each region. ``bound_flops``: no selection that fits recomputes fewer; None if unknown."""

    choices: dict[Path, RegionChoice]
    bound_flops: float | None

    @property
    def kept_bytes(self) -> int:
        """Bytes held from the forward to the backward pass."""
        return sum(c.kept_bytes for c in self.choices.values())

    @property
    def working_bytes(self) -> int:
        """Most recomputed bytes held at once: the backward pass runs one region at a time."""
        return max((c.working_bytes for c in self.choices.values()), default=0)

    @property
    def total_bytes(self) -> int:
        """Kept and working bytes."""
        return self.kept_bytes + self.working_bytes

    @property
    def flops(self) -> int:
        """Recomputed FLOPs."""
        return sum(c.flops for c in self.choices.values())


def everywhere(groups: Sequence[Group], choices: Sequence[RegionChoice]) -> Selection:
    """The same choice for all regions of a group."""
    return Selection({path: c for g, c in zip(groups, choices, strict=True) for path in g.paths}, None)


def keep_all(groups: Sequence[Group]) -> Selection:
    """No rematerialisation."""
    return everywhere(groups, [everything_of(g.graph) for g in groups])


def keep_least(groups: Sequence[Group]) -> Selection:
    """The selection of fewest bytes."""
    least = Model([g.part for g in groups], [len(g.paths) for g in groups]).least(seconds=1.0)
    return everywhere(groups, least)


def select(groups: Sequence[Group], cap_bytes: float, *, seconds: float) -> Selection | None:
    """The selection of fewest FLOPs that fits.

    A few regions are solved together, exactly if time allows. With many, dynamic programming over the budget gives each
    region one of the choices that were prepared for its kind or found by a price on bytes; then single regions are solved
    again for exactly the room that the others leave.

    Args:
        groups: the regions, those that compute the same in one group.
        cap_bytes: limit of kept and working bytes together, over all shards.
        seconds: limit of the search.

    Returns:
        The selection; None if none was found.
    """
    everything = keep_all(groups)
    if everything.total_bytes <= cap_bytes:
        return Selection(everything.choices, 0.0)
    deadline = time.monotonic() + seconds
    together = _together(groups, cap_bytes, seconds)
    if together is not None and together.flops <= _near(together.bound_flops):
        return together
    options = [prepare(g, deadline - 0.6 * seconds) for g in groups]
    copies = [len(g.paths) for g in groups]
    prices = Prices([Model([g.part], [1]) for g in groups], copies, options, cap_bytes)
    prices.search(deadline - 0.3 * seconds)
    found = _best_of_thresholds(groups, [_undominated(choices) for choices in options], cap_bytes)
    if found is None:  # the budget is too tight even for rounding
        found = keep_least(groups)
    if found.total_bytes > cap_bytes:
        return together
    found = _polish(groups, found, cap_bytes, deadline)
    relaxed = Model([g.part for g in groups], copies)
    bound = max(prices.bound_flops, relaxed.bound(cap_bytes, seconds=seconds))
    if together is not None:
        bound = max(bound, together.bound_flops or 0.0)
        found = min(found, together, key=lambda s: s.flops)
    return Selection(found.choices, min(bound, found.flops))


def _near(bound_flops: float | None) -> float:
    """FLOPs near enough to a bound to end the search."""
    return 1.02 * (bound_flops or 0.0)


def _together(groups: Sequence[Group], cap_bytes: float, seconds: float) -> Selection | None:
    """Solve all regions as one integer program, if they are few."""
    parts = [(path, g.part) for g in groups for path in g.paths]
    if sum(len(part.slots) for _, part in parts) > _TOGETHER:
        return None
    solution = Model([part for _, part in parts], [1] * len(parts)).solve(cap_bytes, seconds=0.5 * seconds)
    if solution is None:
        return None
    chosen = {path: c for (path, _), c in zip(parts, solution.choices, strict=True)}
    selection = Selection(chosen, min(solution.bound_flops, sum(c.flops for c in solution.choices)))
    return selection if selection.total_bytes <= cap_bytes else None


def sample(groups: Sequence[Group], *, points: int, seconds: float) -> list[Selection]:
    """Good selections between the fewest bytes and all, to show the trade-off.

    Args:
        groups: the regions, those that compute the same in one group.
        points: number of budgets, spaced evenly over the logarithm of bytes.
        seconds: limit of the search.
    """
    deadline = time.monotonic() + seconds
    options = [prepare(g, deadline) for g in groups]
    least, most = keep_least(groups), keep_all(groups)
    caps = np.geomspace(max(least.total_bytes, 1), max(most.total_bytes, least.total_bytes, 1), points)
    found = [_best_of_thresholds(groups, options, float(cap)) for cap in caps[1:-1]]
    return [least, *(s for s in found if s is not None), most]


def prepare(group: Group, deadline: float) -> list[RegionChoice]:
    """Choices for a kind of region: the fewest bytes, everything, and more between them until the deadline."""
    copies = len(group.paths)
    model = Model([group.part], [copies])
    (least,), most = model.least(seconds=1.0), everything_of(group.graph)
    found = {least: None, most: None}
    low = copies * least.kept_bytes + least.working_bytes
    caps = np.geomspace(max(low, 1), max(copies * most.kept_bytes, low, 1), _OPTIONS)[:-1]
    for cap in _spread(list(caps)):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        solution = model.solve(float(cap), seconds=left)
        if solution is not None:
            found[solution.choices[0]] = None
    return list(found)


def _spread(values: list[Any]) -> Iterator[Any]:
    """Every fourth value, then those between, so an early end leaves no part of the range empty."""
    for start in (0, 2, 1, 3):
        yield from values[start::4]


def _undominated(choices: Sequence[RegionChoice]) -> list[RegionChoice]:
    """Without choices that another one beats or equals in every respect."""
    best: list[RegionChoice] = []
    for choice in sorted(choices, key=lambda c: (c.flops, c.kept_bytes, c.working_bytes)):
        if not any(o.kept_bytes <= choice.kept_bytes and o.working_bytes <= choice.working_bytes for o in best):
            best.append(choice)
    return best


def _best_of_thresholds(
    groups: Sequence[Group], options: Sequence[list[RegionChoice]], cap_bytes: float
) -> Selection | None:
    """The best selection over several limits on working bytes, because one region's working bytes take room from all."""
    limits = sorted({c.working_bytes for choices in options for c in choices})
    if len(limits) > _THRESHOLDS:
        limits = [limits[round(i)] for i in np.linspace(0, len(limits) - 1, _THRESHOLDS)]
    best: Selection | None = None
    for limit in limits:
        allowed = [[c for c in choices if c.working_bytes <= limit] for choices in options]
        if cap_bytes <= limit or not all(allowed):
            continue
        found = _fill(groups, allowed, cap_bytes - limit)
        if found is not None and (best is None or found.flops < best.flops):
            best = found
    return best


def _fill(groups: Sequence[Group], options: Sequence[list[RegionChoice]], room_bytes: float) -> Selection | None:
    """Dynamic program: the fewest FLOPs of the regions so far, for each number of buckets that they may fill."""
    best: npt.NDArray[np.float64] = np.zeros(_BUCKETS + 1)
    order = [(path, choices) for g, choices in zip(groups, options, strict=True) for path in g.paths]
    taken: list[npt.NDArray[np.int16]] = []
    for _, choices in order:
        after = np.full(_BUCKETS + 1, np.inf)
        which = np.full(_BUCKETS + 1, -1, np.int16)
        for number, choice in enumerate(choices):
            weight = _weight(choice, room_bytes)
            if weight > _BUCKETS:
                continue
            candidate = best[: _BUCKETS + 1 - weight] + choice.flops
            better = candidate < after[weight:]
            after[weight:][better] = candidate[better]
            which[weight:][better] = number
        best = after
        taken.append(which)
    if not math.isfinite(best[-1]):
        return None
    bucket, chosen = _BUCKETS, {}
    for (path, choices), which in zip(reversed(order), reversed(taken), strict=True):
        choice = choices[which[bucket]]
        chosen[path] = choice
        bucket -= _weight(choice, room_bytes)
    return Selection(chosen, None)


def _weight(choice: RegionChoice, room_bytes: float) -> int:
    return math.ceil(choice.kept_bytes / room_bytes * _BUCKETS)


def _polish(groups: Sequence[Group], selection: Selection, cap_bytes: float, deadline: float) -> Selection:
    """Solve single regions again for the room that the others leave, the most expensive first."""
    model_of = {path: Model([g.part], [1]) for g in groups for path in g.paths}
    most_expensive = sorted(selection.choices, key=lambda p: -selection.choices[p].flops)
    for path in most_expensive[:_POLISHED]:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        others = selection.kept_bytes - selection.choices[path].kept_bytes
        solution = model_of[path].solve(cap_bytes - others, seconds=left)
        if solution is None:
            continue
        better = Selection({**selection.choices, path: solution.choices[0]}, None)
        if better.total_bytes <= cap_bytes and better.flops < selection.flops:
            selection = better
    return selection
