"""Who computes where: everything on all cores, or the training step alone on one and everything else beside it.

``shared`` is a machine whose cores all train, the worst case for whatever saves beside them. ``split`` is the host of an
accelerator, whose cores mostly wait: the step has the first core for itself, all other threads have the rest. The main
thread, which copies and otherwise waits for steps, may use all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

Layout = Literal["shared", "split"]


class Cores:
    """``begin`` before JAX has made its threads, ``apart`` whenever there may be new ones."""

    def __init__(self, layout: Layout) -> None:
        self._all = os.sched_getaffinity(0)
        if layout == "split" and len(self._all) < 2:
            raise ValueError(f"layout: found split with {len(self._all)} core, allowed: with 2 or more")
        self._split = layout == "split"
        self._first = {min(self._all)}
        self._of_jax: set[int] = set()

    def begin(self, first_computation: Callable[[], object]) -> None:
        """Run a computation for which JAX makes the threads that it will compute with."""
        if not self._split:
            first_computation()
            return
        before = _threads()
        os.sched_setaffinity(0, self._first)
        first_computation()
        self._of_jax = _threads() - before
        os.sched_setaffinity(0, self._all)
        self.apart()

    def apart(self) -> None:
        """Send every thread of this process that does not compute for JAX to the other cores."""
        if not self._split:
            return
        for thread in _threads() - self._of_jax - {os.getpid()}:
            try:
                os.sched_setaffinity(thread, self._all - self._first)
            except ProcessLookupError:
                continue  # it has ended meanwhile


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}
