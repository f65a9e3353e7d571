"""The checkpoint store of one attempt, as one rank uses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast import errors
from holdfast.distributed.coordination import Coordination
from holdfast.installed import require_checked
from holdfast.policies.keep_rules import KeepEverything, KeepRule, require_keep_rule
from holdfast.state.changes import NOTHING_ALLOWED, Allowed
from holdfast.state.structure import PyTree
from holdfast.store.checkpoint_extras import CheckpointExtras
from holdfast.store.claim import RunClaim, claim_run
from holdfast.store.handle import SaveHandle, logger
from holdfast.store.housekeeping import Housekeeping
from holdfast.store.read import poison
from holdfast.store.read.candidates import NEWEST, CheckpointChoice
from holdfast.store.read.restore import Restore, restore_prefix
from holdfast.store.read.restored import Restored
from holdfast.store.store_settings import StoreSettings, Unpinned
from holdfast.store.write import snapshot
from holdfast.store.write.save import SaveContext, SaveJob, save_prefix
from holdfast.store.write.save_preparation import Preparation, Prepared
from holdfast.store.write.save_work import SaveWork
from holdfast.store.write.step_files import RankPart
from holdfast.store.write.writers import writer_for
from holdfast_contract.manifest import CheckpointRef, Owner
from holdfast_contract.runfolder import RunFolder

_EXPIRY_MARGIN_SECONDS: Final = 5.0
"""What waiting allows beyond a save's limit, for the thread that declares the save failed."""
_REMEMBERED: Final = 16
"""No rank lags this many saves or restores behind: the coordination keys of older ones are deleted."""


class Store:
    """Saves and restores of one attempt. Every rank makes the same calls in the same order, each from one thread.

    Call ``claim`` first. Call ``close`` before the process ends, because a save may be in flight.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        attempt: int,
        owner: Owner,
        coordination: Coordination,
        settings: StoreSettings | None = None,
        retention: KeepRule | None = None,
    ) -> None:
        """Make the store; nothing is read or written yet.

        Args:
            folder: the run's folder, one for all ranks.
            attempt: number of this attempt of the job, 1 or more.
            owner: the job that writes, as its owner record will name it.
            coordination: the key-value store of the attempt's ranks.
            settings: limits in seconds, and the writer.
            retention: which checkpoints to keep; default: all.

        Raises:
            ImportError: the installed Orbax was not checked with this release.
            ValueError: ``attempt`` is below 1.
        """
        require_checked("orbax-checkpoint")
        if attempt < 1:
            raise ValueError(f"attempt: found {attempt}, allowed: 1 or more")
        self._claim = RunClaim(RunFolder(Path(folder.root).absolute()), attempt, owner)
        self._coordination = coordination
        self._settings = settings or StoreSettings()
        rule = KeepEverything() if retention is None else retention
        require_keep_rule("keep", rule)
        self._housekeeping = Housekeeping(self._claim, rule, coordination.process_count)
        self._restore_note = poison.RestoreNote(self._claim.folder, attempt)
        self._arena = snapshot.Arena()
        self._preparation = Preparation(self._settings.writer)
        self._saves = self._restores = 0
        self._closed_steps: set[int] = set()
        self._newest: CheckpointRef | None = None
        self._trained_before, self._counting_from = 0.0, time.monotonic()
        self._handles: list[SaveHandle] = []
        self._threads: list[threading.Thread] = []
        self._preparing: threading.Thread | None = None

    @property
    def newest(self) -> CheckpointRef | None:
        """The newest checkpoint that this attempt restored or committed."""
        return self._newest

    @property
    def save_seconds(self) -> float:
        """Limit of one save, from its call to its commit, in seconds."""
        return self._settings.save_seconds

    @property
    def _limit_seconds(self) -> float:
        """After this a save has succeeded or failed."""
        return self._settings.save_seconds + 1.1 * self._settings.settle_seconds

    @property
    def busy(self) -> bool:
        """Whether a save is in flight on this rank. Ranks differ, so never base a collective decision on it alone."""
        return bool(self._handles) and not self._handles[-1].done()

    def claim(self, *, take_over: bool = False) -> None:
        """Claim the run for this attempt; ``claim_run`` lists the errors."""
        claim_run(self._claim, self._coordination, take_over=take_over, settings=self._settings)
        if self._coordination.process_index == 0:
            self._start(self._housekeeping.sweep_leftovers, "holdfast-sweep")

    def prepare(self, state: PyTree) -> None:
        """Begin in the background what the first save of such a state would wait for: its memory and its layout.

        While the first training step compiles, this costs nothing.

        Raises:
            UnsupportedLeaf: a leaf cannot be stored.
        """
        prepared = self._preparation.of(state)
        nbytes = snapshot.memory_bytes(state, prepared)

        def prepare_now() -> None:
            try:
                self._arena.hold(nbytes)
            except OSError as error:  # the save that needs the memory raises it to its caller
                logger.warning("no memory yet for the copy that a save makes, %d bytes: %s", nbytes, error)
            prepared.compute()

        self._await_preparation()
        self._preparing = self._start(prepare_now, "holdfast-prepare")

    def save(self, step: int, state: PyTree, extras: CheckpointExtras | None = None) -> SaveHandle:
        """Snapshot ``state`` now and save it in the background; the caller may donate or change it at once.

        Waits first for the previous save, at most until its limit.

        Args:
            step: the step that was completed, 0 for the initial state.
            state: a pytree of JAX arrays, numpy arrays and Python numbers, of one structure on all ranks.
            extras: what to store besides it.

        Returns:
            The handle of the save. It holds the errors of the save itself, the same on every rank.

        Raises:
            ValueError: ``step`` is negative, or this attempt committed it, or its save timed out in this attempt.
            UnsupportedLeaf: a leaf cannot be stored.
        """
        entered = time.monotonic()
        self._wait_for_previous()
        self._await_preparation()
        waited = time.monotonic() - entered
        if step < 0 or step in self._closed_steps:
            allowed = "0 or more, and neither committed nor timed out in this attempt before"
            raise ValueError(f"step: found {step}, allowed: {allowed}")
        prepared = self._preparation.of(state)
        handle = SaveHandle(step, on_finish=lambda handle, error: self._note_outcome(handle, error, entered))
        handle.timings["wait_seconds"] = waited
        start = time.monotonic()
        copy = snapshot.take(state, prepared, self._arena)
        handle.timings["snapshot_seconds"] = time.monotonic() - start
        handle.bytes = copy.bytes
        self._saves += 1
        work = self._work(step, copy, prepared, extras or CheckpointExtras(), entered)
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
        """Restore the newest valid checkpoint at or below ``pin``, or another ``choice``; the same one on every rank.

        Args:
            pin: an upper bound; UNPINNED: any checkpoint; None: restore nothing.
            abstract: a pytree with the structure, shapes, dtypes and shardings of the result (arrays or
                ShapeDtypeStructs).
            allowed: leaves that may differ from what is stored.
            choice: the newest by default, else one step, or the best by a metric.

        Returns:
            The state and where it comes from; None if the run has no checkpoint to choose from.

        Raises:
            HoldfastError: ``Restore.run`` lists the errors.
        """
        if pin is None:
            return None
        self._restores += 1
        self._forget(restore_prefix(self._restores - _REMEMBERED))
        job = Restore(self._claim.folder, self._coordination, self._settings, self._restores, self._claim.attempt)
        restored = job.run(pin, abstract, allowed, choice)
        if isinstance(pin, CheckpointRef):
            self.protect(pin)
        if restored is not None:
            self._note_restored(restored)
        self._counting_from = time.monotonic()
        return restored

    def ended_in_order(self) -> None:
        """This attempt ends on purpose: the checkpoint that it restored is not to blame if it saved nothing."""
        self._restore_note.remove()

    def protect(self, ref: CheckpointRef) -> None:
        """Never delete this checkpoint in this attempt, whatever retention says."""
        self._housekeeping.protect(ref)

    def wait(self, timeout_seconds: float) -> None:
        """Return when no save is in flight, whether it succeeded or failed. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_seconds
        for handle in self._handles:
            if not handle.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(f"the save of step {handle.step} is still running after {timeout_seconds:g} s")

    def close(self, timeout_seconds: float | None = None) -> None:
        """Wait for the save in flight and for deletions, then raise the first save error that no caller has seen.

        Raises:
            TimeoutError: a save is still running. SaveError, Superseded: a save failed, and no caller read its handle.
        """
        limit = self._limit_seconds + _EXPIRY_MARGIN_SECONDS if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + limit
        self.wait(limit)
        self.tidy(max(0.0, deadline - time.monotonic()))
        for handle in self._handles:
            if not handle.seen and (error := handle.exception()) is not None:
                raise error

    def tidy(self, timeout_seconds: float) -> None:
        """Wait for deletions, at most ``timeout_seconds``; the next attempt deletes what is left."""
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _note_restored(self, restored: Restored) -> None:
        self._newest = restored.ref
        self.protect(restored.ref)
        self._housekeeping.note_damaged(CheckpointRef(r.attempt, r.step) for r in restored.rejected)
        self._trained_before = restored.manifest.elapsed_seconds or 0.0
        if self._coordination.process_index == 0:
            self._restore_note.write(restored.ref)

    def _work(
        self, step: int, copy: snapshot.Snapshot, prepared: Prepared, extras: CheckpointExtras, entered: float
    ) -> SaveWork:
        writer = writer_for(
            copy,
            prepared,
            process=self._coordination.process_index,
            process_count=self._coordination.process_count,
            identity=f"{self._claim.attempt}/{step}/{self._saves}",
        )
        return SaveWork(
            step=step,
            part=RankPart(copy, writer, prepared.structure, extras.data),
            metrics=dict(extras.metrics or {}),
            pinned=extras.pinned,
            parent=self._newest.digest if self._newest else "",
            elapsed_seconds=self._trained_before + entered - self._counting_from,
            metadata=extras.metadata,
        )

    def _run(self, job: SaveJob) -> None:
        limit = self._limit_seconds
        timer = threading.Timer(limit, self._expire, [job])
        timer.daemon = True
        timer.start()
        if self._coordination.process_index == 0:
            job.shortage = self._housekeeping.make_room(job.handle.bytes, self._newest)
        job.run()
        timer.cancel()
        if job.handle.committed is not None and self._coordination.process_index == 0:
            self._restore_note.remove()  # the attempt has a checkpoint of its own now
            self._housekeeping.apply_retention(self._newest)

    def _expire(self, job: SaveJob) -> None:
        self._arena = snapshot.Arena()  # the stuck writer may still read the old one
        job.expire()

    def _note_outcome(self, handle: SaveHandle, error: BaseException | None, entered: float) -> None:
        handle.timings["total_seconds"] = time.monotonic() - entered
        if handle.committed is not None:
            self._newest = handle.committed
        if handle.committed is not None or isinstance(error, errors.SaveTimeout):
            # A writer that timed out may still be writing, so no other save may use the same folder.
            self._closed_steps.add(handle.step)

    def _wait_for_previous(self) -> None:
        if self._handles and not self._handles[-1].done():
            self.wait(self._limit_seconds + _EXPIRY_MARGIN_SECONDS)

    def _await_preparation(self) -> None:
        """Wait for ``prepare``, which only computes and allocates, so it ends."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def _forget(self, prefix: str) -> None:
        if self._coordination.process_index != 0:
            return
        try:
            self._coordination.delete(prefix)
        except Exception as error:  # housekeeping
            logger.debug("keys below %s were not deleted: %s", prefix, error)

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        self._threads = [t for t in self._threads if t.is_alive()]
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread
