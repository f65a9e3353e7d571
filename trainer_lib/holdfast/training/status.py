"""What this process reports to its agent: one value, gathered whenever it is sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.training.goodput import GoodputAccountant
from holdfast.training.progress import Steps
from holdfast_contract.local import TrainerUpdate
from holdfast_contract.manifest import CheckpointRef, Rejection
from holdfast_contract.sync import MAX_LIST, SaveReport


class Status:
    """The state of this trainer as others see it. Thread-safe; ``changed`` is called after a change worth sending soon."""

    def __init__(self, accountant: GoodputAccountant, steps: Steps, changed: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._accountant, self._steps, self._changed = accountant, steps, changed
        self._update = TrainerUpdate()
        self._saves: dict[str, SaveReport] = {}

    @property
    def newest(self) -> CheckpointRef | None:
        """The newest checkpoint that is known to be committed."""
        return self._update.newest

    def restored(self, ref: CheckpointRef | None, rejected: Sequence[Rejection]) -> None:
        """The ranks restored ``ref``, or begin from scratch; these were refused."""
        self._note(restored=ref, restore_done=True, rejected=tuple(rejected)[-MAX_LIST:], newest=ref)

    def committed(self, ref: CheckpointRef) -> None:
        """A save is durable."""
        with self._lock:
            newest = self._update.newest
            self._update = replace(self._update, newest=ref if newest is None else max(newest, ref), storage_error="")
        self._changed()

    def storage_failed(self, message: str) -> None:
        """A save failed; the next one that succeeds clears it."""
        self._note(storage_error=message[:2000])

    def saved(self, report: SaveReport) -> None:
        """How a request stands."""
        with self._lock:
            self._saves.pop(report.id, None)
            self._saves[report.id] = report
            while len(self._saves) > MAX_LIST:
                del self._saves[next(iter(self._saves))]
        self._changed()

    def save_report(self, request_id: str) -> SaveReport | None:
        """The last report about a request."""
        return self._saves.get(request_id)

    def update(self) -> TrainerUpdate:
        """Everything, now."""
        progress = self._steps.report()
        with self._lock:
            saves = tuple(self._saves.values())
            return replace(self._update, progress=progress, saves=saves, buckets=self._accountant.seconds())

    def _note(self, **changes: object) -> None:
        with self._lock:
            self._update = replace(self._update, **changes)  # type: ignore[arg-type]
        self._changed()
