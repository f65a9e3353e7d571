"""The store of one attempt, as one rank sees it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast import errors
from holdfast.distributed.coordination import Coordination
from holdfast.installed import require_checked
from holdfast.policies.retention import KeepAll, Retention
from holdfast.state.changes import NOTHING_ALLOWED, Allowed
from holdfast.state.structure import PyTree
from holdfast.store.claim import RunClaim, claim_run, sweep_leftovers
from holdfast.store.handle import SaveHandle, logger
from holdfast.store.read import poison
from holdfast.store.read.candidates import NEWEST, CheckpointChoice
from holdfast.store.read.restore import Restore, Restored, restore_prefix
from holdfast.store.store_settings import StoreSettings, Unpinned
from holdfast.store.sweep import apply_retention
from holdfast.store.write import snapshot, space
from holdfast.store.write.preparation import Preparation, Prepared
from holdfast.store.write.save import SaveContext, SaveJob, save_prefix
from holdfast.store.write.save_work import SaveWork
from holdfast.store.write.step_files import RankPart
from holdfast.store.write.writers import Writer, writer_for
from holdfast_contract.manifest import CheckpointRef, Owner
from holdfast_contract.runfolder import RunFolder

_EXPIRY_MARGIN_SECONDS: Final = 5.0  # for the thread that declares a save over
_REMEMBERED: Final = 16
"""So many saves back no rank can be any more: the keys of older ones are deleted from the coordination service."""


@dataclass(frozen=True)
class CheckpointExtras:
    """What to save beside the state. ``metrics`` values are anything that ``float()`` takes, ``metadata`` is JSON."""

    data: bytes | None = None
    metrics: Mapping[str, object] | None = None
    pinned: bool = False
    metadata: bytes | None = None


class Store:
    """Saves and restores of one attempt. All ranks make the same calls in the same order, from one thread each.

    ``claim`` comes first. A process must not end with a save in flight: call ``close``.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        attempt: int,
        owner: Owner,
        coordination: Coordination,
        settings: StoreSettings | None = None,
        retention: Retention | None = None,
    ) -> None:
        require_checked("orbax-checkpoint")
        if attempt < 1:
            raise ValueError(f"attempt: found {attempt}, allowed: 1 or more")
        self._claim = RunClaim(RunFolder(Path(folder.root).absolute()), attempt, owner)
        self._coordination = coordination
        self._settings = settings or StoreSettings()
        self._retention = retention or KeepAll()
        self._arena = snapshot.Arena()
        self._preparation = Preparation(self._settings.writer)
        self._saves = self._restores = 0
        self._closed_steps: set[int] = set()
        self._newest: CheckpointRef | None = None
        self._protected: set[CheckpointRef] = set()
        self._damaged: set[CheckpointRef] = set()
        self._noted = False
        self._trained_before, self._counting_from = 0.0, time.monotonic()
        self._handles: list[SaveHandle] = []
        self._threads: list[threading.Thread] = []
        self._sweeping = threading.Lock()
        self._preparing: threading.Thread | None = None

    @property
    def newest(self) -> CheckpointRef | None:
        """The newest checkpoint that this attempt restored or committed."""
        return self._newest

    @property
    def save_seconds(self) -> float:
        """How long a save may take."""
        return self._settings.save_seconds

    @property
    def _limit_seconds(self) -> float:
        """After this a save is over, one way or the other."""
        return self._settings.save_seconds + 1.1 * self._settings.settle_seconds

    @property
    def busy(self) -> bool:
        """Whether a save is in flight on this rank. Ranks differ: decide nothing collective by it alone."""
        return bool(self._handles) and not self._handles[-1].done()

    def claim(self, *, take_over: bool = False) -> None:
        """Claim the run for this attempt. See ``claim_run`` for what is raised."""
        claim_run(self._claim, self._coordination, take_over=take_over, settings=self._settings)
        if self._coordination.process_index == 0:
            self._start(self._sweep_leftovers, "holdfast-sweep")

    def prepare(self, state: PyTree) -> None:
        """Begin in the background what the first save of a state like this would wait for: memory for its copy, and what
        is worked out once. While the first step compiles that costs nothing.

        Raises:
            UnsupportedLeaf: a leaf cannot be stored.
        """
        prepared = self._preparation.of(state)
        nbytes = snapshot.memory_bytes(state, prepared)

        def get_ready() -> None:
            try:
                self._arena.hold(nbytes)
            except OSError as error:  # the save that needs it will say so to whoever asked for it
                logger.warning("no memory yet for the copy that a save makes, %d bytes: %s", nbytes, error)
            prepared.work_out()

        self._await_preparation()
        self._preparing = self._start(get_ready, "holdfast-prepare")

    def save(self, step: int, state: PyTree, request: CheckpointExtras | None = None) -> SaveHandle:
        """Snapshot ``state`` now and save it in the background; the caller may donate or change it at once.

        Waits first for the save before this one, at most its limit. Errors of the save itself are in the handle, the
        same on every rank.

        Raises:
            ValueError: ``step`` is negative, or its save was committed or timed out in this attempt before.
            UnsupportedLeaf: a leaf cannot be stored.
        """
        entered = time.monotonic()
        request = request or CheckpointExtras()
        self._wait_for_previous()
        self._await_preparation()
        waited = time.monotonic() - entered
        if step < 0 or step in self._closed_steps:
            allowed = "0 or more, and neither committed nor timed out in this attempt before"
            raise ValueError(f"step: found {step}, allowed: {allowed}")
        prepared = self._preparation.of(state)
        handle = SaveHandle(step, on_finish=lambda handle, error: self._note(handle, error, entered))
        handle.timings["wait_seconds"] = waited
        start = time.monotonic()
        copy = snapshot.take(state, prepared, self._arena)
        handle.timings["snapshot_seconds"] = time.monotonic() - start
        handle.bytes = copy.bytes
        parent = self._newest.digest if self._newest else ""
        elapsed = self._trained_before + entered - self._counting_from
        self._saves += 1
        part = RankPart(copy, self._writer_of(copy, prepared, step), prepared.structure, request.data)
        metrics = dict(request.metrics or {})
        work = SaveWork(step, part, metrics, request.pinned, parent, elapsed, request.metadata)
        deadline = entered + self._settings.save_seconds
        context = SaveContext(self._claim, self._coordination, self._settings, self._saves, deadline)
        self._forget(save_prefix(self._saves - _REMEMBERED))
        self._handles = [*[h for h in self._handles if not (h.done() and h.seen)][-_REMEMBERED:], handle]
        self._start(lambda: self._run(SaveJob(context, work, handle)), f"holdfast-save-{step}")
        return handle

    def restore(
        self,
        pin: CheckpointRef | Unpinned | None,
        abstract: PyTree,
        allowed: Allowed = NOTHING_ALLOWED,
        choice: CheckpointChoice = NEWEST,
    ) -> Restored | None:
        """The newest valid checkpoint at or below ``pin``, or the ``choice`` there, the same on every rank.

        ``pin``: an upper bound; UNPINNED: any candidate; None: nothing may be restored. ``abstract`` has the structure,
        shapes, dtypes and shardings of the result (arrays or ShapeDtypeStructs), but for what is ``allowed`` to differ.
        None if there is no candidate. See ``Restore.run`` for what is raised.
        """
        if pin is None:
            return None
        self._restores += 1
        self._forget(restore_prefix(self._restores - _REMEMBERED))
        job = Restore(self._claim.folder, self._coordination, self._settings, self._restores, self._claim.attempt)
        restored = job.run(pin, abstract, allowed, choice)
        if isinstance(pin, CheckpointRef):
            self._protected.add(pin)
        if restored is not None:
            self._newest = restored.ref
            self._protected.add(restored.ref)
            self._damaged |= {CheckpointRef(r.attempt, r.step) for r in restored.rejected}
            self._trained_before = restored.manifest.elapsed_seconds or 0.0
            self._note_restored(restored.ref)
        self._counting_from = time.monotonic()
        return restored

    def ended_in_order(self) -> None:
        """This attempt ends on purpose: what it was restored from is not to blame that it saved nothing."""
        if self._noted:
            self._noted = False
            try:
                poison.forgive(self._claim.folder, self._claim.attempt)
            except OSError as error:
                logger.warning("the note of what this attempt went on from stays: %s", error)

    def _note_restored(self, ref: CheckpointRef) -> None:
        if self._coordination.process_index != 0:
            return
        try:
            poison.note(self._claim.folder, self._claim.attempt, ref)
        except OSError as error:  # saves will tell whether storage can be written
            logger.warning("what this attempt went on from could not be noted: %s", error)
        else:
            self._noted = True

    def protect(self, ref: CheckpointRef) -> None:
        """Never delete this checkpoint in this attempt, whatever retention says."""
        self._protected.add(ref)

    def wait(self, timeout_seconds: float) -> None:
        """Return when no save is in flight, whatever became of it. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_seconds
        for handle in self._handles:
            if not handle.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"the save of step {handle.step} still goes on after {timeout_seconds:g} s")

    def close(self, timeout_seconds: float | None = None) -> None:
        """Wait for the save in flight and for deletions; then raise the first error that nobody has asked for.

        Raises:
            TimeoutError: a save still goes on; SaveError or Superseded: a save failed and its handle was never asked.
        """
        limit = self._limit_seconds + _EXPIRY_MARGIN_SECONDS if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + limit
        self.wait(limit)
        self.tidy(max(0.0, deadline - time.monotonic()))
        for handle in self._handles:
            if not handle.seen and (error := handle.exception()) is not None:
                raise error

    def tidy(self, timeout_seconds: float) -> None:
        """Return when what no rule keeps is deleted, or after that time; the next attempt deletes what is left then."""
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _writer_of(self, copy: snapshot.Snapshot, prepared: Prepared, step: int) -> Writer:
        return writer_for(
            copy,
            prepared,
            process=self._coordination.process_index,
            processes=self._coordination.process_count,
            identity=f"{self._claim.attempt}/{step}/{self._saves}",
        )

    def _run(self, job: SaveJob) -> None:
        limit = self._limit_seconds
        timer = threading.Timer(limit, self._expire, [job])
        timer.daemon = True
        timer.start()
        if self._coordination.process_index == 0:
            job.shortage = self._make_room(job.handle.bytes)
        job.run()
        timer.cancel()
        if job.handle.committed is not None and self._coordination.process_index == 0:
            self.ended_in_order()  # it has come to something
            self._apply_retention()

    def _expire(self, job: SaveJob) -> None:
        self._arena = snapshot.Arena()  # the stuck writer may still read the old one
        job.expire()

    def _note(self, handle: SaveHandle, error: BaseException | None, entered: float) -> None:
        handle.timings["total_seconds"] = time.monotonic() - entered
        if handle.committed is not None:
            self._newest = handle.committed
        if handle.committed is not None or isinstance(error, errors.SaveTimeout):
            # A writer that timed out may still be at it: nobody else may write into the same folder.
            self._closed_steps.add(handle.step)

    def _wait_for_previous(self) -> None:
        if self._handles and not self._handles[-1].done():
            self.wait(self._limit_seconds + _EXPIRY_MARGIN_SECONDS)

    def _await_preparation(self) -> None:
        """It computes and gets memory, which ends."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def _forget(self, prefix: str) -> None:
        if self._coordination.process_index != 0:
            return
        try:
            self._coordination.delete(prefix)
        except Exception as error:  # housekeeping
            logger.debug("keys below %s stay: %s", prefix, error)

    def _make_room(self, state_bytes: int) -> str:
        """Warn early; if the next checkpoint does not fit, free what no rule keeps; what is missing then, or ""."""
        root = self._claim.folder.root
        try:
            room = space.room(self._claim.folder, state_bytes * self._coordination.process_count)
            if not room.is_getting_short:
                return ""
            logger.warning("%s: storage is getting full: %s", root, room)
            if room.is_short:
                self._apply_retention()
                self._sweep_leftovers()
                room = space.room(self._claim.folder, state_bytes * self._coordination.process_count)
        except OSError as error:  # the save itself will tell
            logger.debug("room on storage is not known: %s", error)
            return ""
        if not room.is_short:
            return ""
        logger.error("%s: no room for the next checkpoint, and nothing is left that no rule keeps: %s", root, room)
        return f"{room}, and nothing is left to delete that no rule keeps"

    def _apply_retention(self) -> None:
        if isinstance(self._retention, KeepAll):
            return
        protected = {*self._protected, *([self._newest] if self._newest else [])}
        with self._sweeping:
            try:
                removed = apply_retention(self._claim, self._retention, protected=protected, damaged=self._damaged)
            except (OSError, errors.HoldfastError, ValueError) as error:
                logger.warning("retention: %s", error)
            else:
                for ref in removed:
                    logger.info("deleted checkpoint of attempt %d, step %d", ref.attempt, ref.step)

    def _sweep_leftovers(self) -> None:
        with self._sweeping:
            try:
                sweep_leftovers(self._claim)
            except OSError as error:
                logger.warning("leftovers of earlier writers stay: %s", error)

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        self._threads = [t for t in self._threads if t.is_alive()]
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread
