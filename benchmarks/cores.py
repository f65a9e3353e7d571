"""Assigns threads to cores: all threads on all cores, or the training step alone on one core.

``shared`` simulates a machine whose cores all train, which is the worst case for a save. ``split`` simulates the host of an
accelerator, whose cores mostly wait: the step has the first core to itself, and all other threads have the rest. The main
thread, which copies and otherwise waits for steps, may use all cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

Layout = Literal["shared", "split"]


class Cores:
    """Call ``begin`` before JAX has created its threads, and ``apart`` whenever there may be new threads."""

    def __init__(self, layout: Layout) -> None:
        self._all = os.sched_getaffinity(0)
        if layout == "split" and len(self._all) < 2:
            raise ValueError(f"layout: found split with {len(self._all)} core, allowed: split with 2 or more cores")
        self._split = layout == "split"
        self._first = {min(self._all)}
        self._of_jax: set[int] = set()

    def begin(self, first_computation: Callable[[], object]) -> None:
        """Run a computation, during which JAX creates its compute threads."""
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
        """Move every thread of this process that is not one of JAX's compute threads to the other cores."""
        if not self._split:
            return
        for thread in _threads() - self._of_jax - {os.getpid()}:
            try:
                os.sched_setaffinity(thread, self._all - self._first)
            except ProcessLookupError:
                continue  # the thread has ended


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}
