"""How far training really is: a step is complete when its result exists, not when Python has asked for it."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from holdfast.policies.metric_values import REMEMBERED_VALUES, as_finite_floats, readable
from holdfast_contract.sync import Progress

RECENT_STEPS: Final = 32
"""Window of the median step time."""


class Steps:
    """Steps on their way and the last completed one. ``wait`` belongs to the main thread; the rest is thread-safe.

    ``completed`` is called once per completed step, on the thread that noticed.
    """

    def __init__(self, completed: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock, self._on_completed = clock, completed
        self._pending: deque[tuple[int, list[Any], Mapping[str, Any]]] = deque()
        self._durations: deque[float] = deque(maxlen=RECENT_STEPS)
        self._last_completion: float | None = None
        self._metrics: Mapping[str, Any] = {}
        self._recent: dict[str, deque[float]] = {}
        self._seen = False
        self._completed = 0
        self.total: int | None = None

    @property
    def completed(self) -> int:
        """The last step whose result exists."""
        return self._completed

    @property
    def pending(self) -> int:
        """How many steps were dispatched and are not known to be complete."""
        return len(self._pending)

    @property
    def step_seconds(self) -> float | None:
        """Median duration of recent steps; None before two are complete."""
        with self._lock:
            return statistics.median(self._durations) if self._durations else None

    def watch(self, metrics: Iterable[str]) -> None:
        """Remember the latest values of these."""
        self._recent = {name: deque(maxlen=REMEMBERED_VALUES) for name in metrics}

    def recent(self) -> dict[str, tuple[float, ...]]:
        """The latest values of each watched metric, oldest first; a step that did not report it is left out."""
        with self._lock:
            return {name: tuple(values) for name, values in self._recent.items()}

    def start_at(self, step: int) -> None:
        """Training goes on after ``step``."""
        with self._lock:
            self._completed, self._seen = step, True
            self._pending.clear()

    def add(self, step: int, results: list[Any], metrics: Mapping[str, Any]) -> None:
        """``step`` was dispatched; it is complete when the arrays ``results`` are."""
        with self._lock:
            self._pending.append((step, results, metrics))

    def wait(self, step: int) -> None:
        """Wait for the results of all steps up to ``step``. Raises what the computation raised."""
        import jax

        while self._pending and self._pending[0][0] <= step:
            jax.block_until_ready(self._pending[0][1])  # type: ignore[no-untyped-call]
            self._finish_first()
        self.poll()

    def poll(self) -> None:
        """Note what has completed meanwhile, without waiting."""
        while self._pending:
            try:
                results = self._pending[0][1]
            except IndexError:  # another thread was faster
                return
            if not all(map(_is_ready, results)):
                return
            self._finish_first(results)

    def report(self) -> Progress | None:
        """The progress for the agent; None before the loop."""
        if not self._seen:
            return None
        self.poll()
        step_seconds = self.step_seconds
        return Progress(self._completed, self.total, step_seconds, as_finite_floats(self._metrics))

    def _finish_first(self, expected: list[Any] | None = None) -> None:
        with self._lock:
            if not self._pending or (expected is not None and self._pending[0][1] is not expected):
                return
            step, _, metrics = self._pending.popleft()
            now = self._clock()
            if self._last_completion is not None:
                self._durations.append(now - self._last_completion)
            self._last_completion = now
            self._completed, self._metrics = max(step, self._completed), metrics
            for name, values in self._recent.items():
                if name in metrics and (value := readable(metrics[name])) is not None:
                    values.append(value)
        self._on_completed(step)


def _is_ready(result: Any) -> bool:
    """Whether there is nothing left to wait for. To ask a deleted array whether it is ready ends the process in jaxlib."""
    return bool(result.is_deleted() or result.is_ready())


def results_of(state: Any, metrics: Mapping[str, Any]) -> list[Any]:
    """A few small arrays that are ready when the step is, and that the next step will not donate.

    Metrics serve if there are any. The smallest leaf of the state serves otherwise, as a copy.
    """
    import jax
    import jax.numpy as jnp

    from holdfast.state.structure import is_key

    arrays = [value for value in metrics.values() if isinstance(value, jax.Array)]
    if arrays:
        return arrays
    leaves = [leaf for leaf in jax.tree_util.tree_leaves(state) if isinstance(leaf, jax.Array)]
    leaves = [leaf for leaf in leaves if not is_key(leaf)]
    return [jnp.copy(min(leaves, key=lambda leaf: leaf.size))] if leaves else []
