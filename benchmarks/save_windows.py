"""Measures the total cost of a save to a training loop, in pairs of windows: the same steps with one save and without.

The windows of a pair follow each other directly, in one order in the first pair and reversed in the second, so that slow drift
of the machine cancels out. Between windows, outside the timing, the harness waits for the save, restores it with plain Orbax
and compares the bytes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.save_arms import Arm, State, digests, ready, wrong_leaves

_RESAMPLES = 4000
_MIDDLE = (2.5, 97.5)  # percent


@dataclass
class Found:
    """Results of one arm.

    ``lost``: seconds lost per save in each counted round; ``steps``: seconds of a step; ``unfinished``: saves still in
    flight at the end of their window; ``wrong``: leaves with wrong bytes.
    """

    lost: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    unfinished: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Loop:
    """A loop with ``steps`` per window; ``apart`` moves new threads to their cores, in both windows of a pair."""

    step: Callable[[State], State]
    steps: int
    apart: Callable[[], None]


def measure_round(arm: Arm, state: State, loop: Loop, folder: Path) -> Found:
    """Measure one pair of windows in each order; ``lost`` has the mean of both."""
    found = Found()
    folder.mkdir()
    arm.begin(folder)
    lost = []
    for number, save_first in enumerate((True, False)):
        seconds = {}
        for saves in (save_first, not save_first):
            expected = digests(state) if saves else {}
            seconds[saves], state = _window(arm if saves else None, number, state, loop)
            found.unfinished += saves and arm.busy()
            arm.finish()
            _settle()
            if saves:
                found.wrong += wrong_leaves(arm, number, expected)
        lost.append(seconds[True] - seconds[False])
        found.steps.append(seconds[False] / loop.steps)
    found.lost.append(sum(lost) / len(lost))
    shutil.rmtree(folder)
    _settle()
    return found


def _window(arm: Arm | None, number: int, state: State, loop: Loop) -> tuple[float, State]:
    ready(state)
    start = time.perf_counter()
    if arm is not None:
        arm.save(number, state)
    loop.apart()
    for _ in range(loop.steps):
        state = ready(loop.step(state))
    return time.perf_counter() - start, state


def _settle() -> None:
    """Write back the page cache now, so that this does not happen during the next window."""
    os.sync()


class Bootstrap:
    """Intervals from rounds resampled with replacement; all arms of a ratio use the same rounds."""

    def __init__(self, rounds: int) -> None:
        self._drawn = np.random.default_rng(0).integers(0, rounds, (_RESAMPLES, rounds))

    def medians(self, values: list[float]) -> npt.NDArray[np.float64]:
        """Return the median of each resampled set of rounds."""
        medians: npt.NDArray[np.float64] = np.median(np.asarray(values)[self._drawn], axis=1)
        return medians

    def interval(self, values: list[float]) -> tuple[float, float]:
        """Return the interval that contains 95 % of the medians."""
        low, high = np.percentile(self.medians(values), _MIDDLE)
        return float(low), float(high)

    def ratio(self, other: list[float], own: list[float], floor: float) -> tuple[float, float, float]:
        """Return ``other`` divided by ``own``, and the interval. Losses below ``floor`` count as ``floor``."""
        middle = max(float(np.median(other)), floor) / max(float(np.median(own)), floor)
        drawn = np.maximum(self.medians(other), floor) / np.maximum(self.medians(own), floor)
        low, high = np.percentile(drawn, _MIDDLE)
        return middle, float(low), float(high)
