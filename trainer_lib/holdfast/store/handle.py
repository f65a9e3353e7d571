"""The handle of a save that runs in the background."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from holdfast_contract.manifest import CheckpointRef

logger = logging.getLogger("holdfast.store")


class SaveHandle:
    """One save, from the snapshot to the commit that every rank knows of.

    ``committed`` is the checkpoint once it exists. ``timings`` maps a stage to its seconds on this rank and grows while
    the save runs. ``bytes`` is the size of this rank's snapshot. Thread-safe. ``await handle`` is ``handle.result()``.
    """

    def __init__(
        self, step: int, *, on_finish: Callable[[SaveHandle, BaseException | None], None] | None = None
    ) -> None:
        self.step = step
        self.committed: CheckpointRef | None = None
        self.bytes = 0
        self.timings: dict[str, float] = {}
        self._future: Future[CheckpointRef] = Future()
        self._future.set_running_or_notify_cancel()  # a caller that stops waiting must not cancel the save
        self._finishing = threading.Lock()
        self._seen = False
        self._on_finish = on_finish

    def done(self) -> bool:
        """Whether the save is committed or has failed."""
        return self._future.done()

    def result(self, timeout_seconds: float | None = None) -> CheckpointRef:
        """Wait for the save and return the committed checkpoint.

        Raises:
            TimeoutError: the save is still running after ``timeout_seconds``.
            SaveError: the save failed; the same on every rank.
            Superseded: this attempt may no longer write; the same on every rank.
        """
        try:
            ref = self._future.result(timeout_seconds)
        except FutureTimeoutError:
            if self._future.done():
                self._seen = True
                raise
            raise TimeoutError(f"the save of step {self.step} is still running after {timeout_seconds} s") from None
        except BaseException:
            self._seen = True
            raise
        self._seen = True
        return ref

    def wait(self, timeout_seconds: float) -> bool:
        """Wait; whether the save has succeeded or failed within that time."""
        return bool(wait([self._future], timeout_seconds).done)

    def exception(self) -> BaseException | None:
        """The error of a failed save; None if the save is committed or still running."""
        if not self._future.done():
            return None
        self._seen = True
        return self._future.exception()

    @property
    def error(self) -> BaseException | None:
        """As ``exception()``."""
        return self.exception()

    def __await__(self) -> Generator[Any, None, CheckpointRef]:
        return self._awaited().__await__()

    async def _awaited(self) -> CheckpointRef:
        try:
            return await asyncio.shield(asyncio.wrap_future(self._future))
        finally:
            self._seen |= self._future.done()

    def add_done_callback(self, callback: Callable[[SaveHandle], None]) -> None:
        """Call ``callback(self)`` when the save is done, or now if it is. It runs on the saving thread, so it must be quick."""
        self._future.add_done_callback(lambda _: callback(self))

    @property
    def seen(self) -> bool:
        """Whether a caller has read the outcome."""
        return self._seen

    def finish(self, outcome: CheckpointRef | BaseException) -> bool:
        """Set the outcome, once; returns False if it was set before. For the store only."""
        with self._finishing:
            if self._future.done():
                return False
            if isinstance(outcome, CheckpointRef):
                self.committed = outcome
            if self._on_finish:
                # Called before any waiting thread wakes up.
                self._on_finish(self, outcome if isinstance(outcome, BaseException) else None)
            if isinstance(outcome, BaseException):
                logger.error("%s", outcome)
                self._future.set_exception(outcome)
            else:
                self._future.set_result(outcome)
            return True
