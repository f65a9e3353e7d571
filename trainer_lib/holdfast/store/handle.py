"""What a caller holds while a save goes on in the background."""

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
    the save goes on; ``bytes`` is what this rank snapshotted. Thread-safe. ``await handle`` is ``handle.result()``.
    """

    def __init__(
        self, step: int, *, on_finish: Callable[[SaveHandle, BaseException | None], None] | None = None
    ) -> None:
        self.step = step
        self.committed: CheckpointRef | None = None
        self.bytes = 0
        self.timings: dict[str, float] = {}
        self._future: Future[CheckpointRef] = Future()
        self._future.set_running_or_notify_cancel()  # who stops waiting must not cancel it
        self._finishing = threading.Lock()
        self._seen = False
        self._on_finish = on_finish

    def done(self) -> bool:
        """Whether the save is committed or has failed."""
        return self._future.done()

    def result(self, timeout_seconds: float | None = None) -> CheckpointRef:
        """The committed checkpoint, waiting for it.

        Raises:
            TimeoutError: still going on after ``timeout_seconds``.
            SaveError: the save failed; Superseded: this attempt may not write any more. The same on every rank.
        """
        try:
            ref = self._future.result(timeout_seconds)
        except FutureTimeoutError:
            if self._future.done():
                self._seen = True
                raise
            raise TimeoutError(f"the save of step {self.step} still goes on after {timeout_seconds} s") from None
        except BaseException:
            self._seen = True
            raise
        self._seen = True
        return ref

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it is done within that time, well or badly."""
        return bool(wait([self._future], timeout_seconds).done)

    def exception(self) -> BaseException | None:
        """The error of a finished save; None if it is committed or still going on."""
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
        """Call ``callback(self)`` once done, at once if it is already; on the saving thread, so be quick."""
        self._future.add_done_callback(lambda _: callback(self))

    @property
    def seen(self) -> bool:
        """Whether somebody has asked for the outcome."""
        return self._seen

    def finish(self, outcome: CheckpointRef | BaseException) -> bool:
        """Set the outcome once; False if it was set before. For the store."""
        with self._finishing:
            if self._future.done():
                return False
            if isinstance(outcome, CheckpointRef):
                self.committed = outcome
            if self._on_finish:
                self._on_finish(
                    self, outcome if isinstance(outcome, BaseException) else None
                )  # before anybody who waits wakes up
            if isinstance(outcome, BaseException):
                logger.error("%s", outcome)
                self._future.set_exception(outcome)
            else:
                self._future.set_result(outcome)
            return True
