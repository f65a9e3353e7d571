"""A restore by all ranks together: they try checkpoints from the pin downwards, and one rank's refusal counts for all.

Rank 0 leads. Every rank verifies its share of a candidate's files, so that each byte is hashed once in the world, and
votes; rank 0 announces what follows. A rank keeps what it needs of its share from the same read, and returns it only after
every rank has accepted the candidate. A fault of storage (no answer, no access) is never a refusal: it ends the restore,
because falling back to an older checkpoint would silently cost work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast import errors
from holdfast.distributed import votes
from holdfast.distributed.coordination import Coordination
from holdfast.distributed.votes import Ballot, Problem, ProblemKind
from holdfast.state import forms, structure
from holdfast.state.changes import NOTHING_ALLOWED, Allowed, Changed, compare
from holdfast.state.structure import STRUCTURE_FILE, PyTree, Structure
from holdfast.store.format import digests, fs
from holdfast.store.format.data_files import data_file
from holdfast.store.handle import logger
from holdfast.store.read import late_files, verified_read
from holdfast.store.read.announcements import Announcement, NextStep, announce, await_announcement
from holdfast.store.read.candidates import NEWEST, Candidates, CheckpointChoice, Pin
from holdfast.store.read.read_plan import NotUnderstoodError, ReadPlan
from holdfast.store.read.restored import Restored
from holdfast.store.store_settings import StoreSettings
from holdfast_contract.keys import STATE_FOLDER
from holdfast_contract.manifest import CheckpointRef, FileEntry, Rejection
from holdfast_contract.runfolder import Found, RunFolder

_REPORTED_LEAVES: Final = 100
"""How many differing leaves a rank reports to the others."""
_NOT_SHARED: Final = (
    "process {rank} does not see the manifest that process 0 sees; the path must be the same shared volume everywhere"
)


@dataclass(frozen=True)
class _Target:
    """What the caller asked to fill."""

    abstract: PyTree
    allowed: Allowed

    def fit(self, folder: Path) -> _Fit:
        """How to fill it from the checkpoint in ``folder``. Raises StructureMismatch."""
        stored = structure.from_bytes((folder / STRUCTURE_FILE).read_bytes())
        abstract = forms.in_stored_form(self.abstract, stored)
        return _Fit(stored, abstract, compare(stored, structure.structure_of(abstract), self.allowed))

    def unverified_fit(self, folder: Path) -> _Fit | None:
        """The same by a record that is not verified yet; None if it cannot be read or does not fit."""
        try:
            return self.fit(folder)
        except (OSError, ValueError, errors.HoldfastError):
            return None


@dataclass(frozen=True)
class _Fit:
    """A checkpoint's structure, what to fill in the forms that its leaves have there, and how both differ."""

    stored: Structure
    abstract: PyTree
    changed: Changed


@dataclass
class Restore:
    """One restore. Every rank makes one with the same ``number``, which counts an attempt's restores, and calls ``run``."""

    folder: RunFolder
    coordination: Coordination
    settings: StoreSettings
    number: int
    attempt: int
    timings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        began = time.monotonic()
        self._deadline = began + self.settings.restore_seconds
        self._visible_by = began + self.settings.visible_seconds  # every file was written before the restore began
        self._round = 0
        self._target = _Target(None, NOTHING_ALLOWED)
        self._plan: ReadPlan | None = None
        self._fit: _Fit | None = None

    def run(
        self, pin: Pin, abstract: PyTree, allowed: Allowed = NOTHING_ALLOWED, choice: CheckpointChoice = NEWEST
    ) -> Restored | None:
        """Restore the newest valid checkpoint at or below ``pin``, or another ``choice``; None if there is no candidate.

        Args:
            pin: an upper bound, or UNPINNED.
            abstract: a pytree with the structure, shapes, dtypes and shardings to fill.
            allowed: leaves that may be new or dropped.
            choice: the newest, one step, or the best by a metric.

        Raises:
            NoValidCheckpoint: candidates exist and all were refused, with every reason.
            StructureMismatch: the checkpoint is intact, and ``abstract`` differs from it by more than is ``allowed``.
            StorageError: storage did not answer or denied access.
            RestoreError: loading failed on some rank for another reason.
            PeerLost: a rank did not answer in time.
        """
        structure.structure_of(abstract)  # refuses a leaf that cannot be restored before anything is read
        self._target = _Target(abstract, allowed)
        start = time.monotonic()
        announced, found = self._choose(pin, choice)
        self.timings["verify_seconds"] = time.monotonic() - start
        if announced.next is NextStep.NOTHING:
            return None
        if announced.next is NextStep.EXHAUSTED:
            raise errors.NoValidCheckpoint(self.folder.root, announced.rejected)
        if announced.next is NextStep.FAILED or found is None or announced.ref is None:
            raise self._error(announced.rank, announced.problem)
        start = time.monotonic()
        state, data, changed = self._load(found)
        self.timings["load_seconds"] = time.monotonic() - start
        return Restored(
            state,
            data,
            announced.ref,
            found.manifest,
            announced.rejected,
            self.timings,
            changed=changed,
            folder=found.folder,
        )

    # Choosing.

    def _choose(self, pin: Pin, choice: CheckpointChoice) -> tuple[Announcement, Found | None]:
        leader = self._lead(pin, choice) if self._rank == 0 else None
        found: Found | None = None
        while True:
            announced = next(leader) if leader else self._await_announcement()
            if announced.next is not NextStep.VERIFY or announced.ref is None:
                return announced, found
            found = self._vote_on(announced.ref)

    def _lead(self, pin: Pin, choice: CheckpointChoice) -> Iterator[Announcement]:
        """Rank 0: make one announcement after another; this rank acts on each like every other rank."""
        refused: list[Rejection] = []
        try:
            for entry in Candidates(self.folder, self.attempt, self.settings).in_order(pin, choice):
                if isinstance(entry, Rejection):
                    refused.append(entry)
                    continue
                yield self._announce(Announcement(NextStep.VERIFY, entry.ref))
                rejection, blamed = self._count(entry.ref)
                if blamed is not None:
                    yield self._announce(Announcement(NextStep.FAILED, rank=blamed.rank, problem=blamed.problem))
                if rejection is None:
                    yield self._announce(Announcement(NextStep.ACCEPT, entry.ref, tuple(refused)))
                else:
                    refused.append(rejection)
            last = NextStep.EXHAUSTED if refused else NextStep.NOTHING
            yield self._announce(Announcement(last, rejected=tuple(refused)))
        except (OSError, errors.HoldfastError) as error:
            yield self._announce(Announcement(NextStep.FAILED, problem=votes.problem_of(error, where=self.folder.root)))

    def _count(self, ref: CheckpointRef) -> tuple[Rejection | None, votes.Vote | None]:
        """(rejection, None), (None, the vote of a rank that failed), or (None, None) if every rank accepted."""
        gathered = self._ballot().gather("every process to verify its share", deadline=self._deadline)
        blamed = votes.first_problem(gathered)
        if blamed is None or blamed.problem is None:
            return None, None
        if blamed.problem.kind is ProblemKind.REJECTED:
            return Rejection(ref.attempt, ref.step, blamed.problem.message), None
        return None, blamed

    # Every rank.

    def _vote_on(self, ref: CheckpointRef) -> Found | None:
        self._round += 1
        self._plan = None  # frees the memory of the previous candidate
        try:
            found = self._find(ref)
            self._verify(found)
        except digests.DamagedFileError as error:
            self._ballot().cast(problem=Problem(ProblemKind.REJECTED, str(error)))
            return None
        except Exception as error:  # any error must reach the other ranks
            self._ballot().cast(problem=votes.problem_of(error, where=self.folder.step_folder(ref.attempt, ref.step)))
            return None
        self._ballot().cast()
        return found

    def _find(self, ref: CheckpointRef) -> Found:
        """The manifest that rank 0 saw; on a network file system it may take a moment to appear here."""

        def look() -> Found:
            entry = self.folder.look(ref.attempt, ref.step)
            if isinstance(entry, Found) and entry.ref.digest == ref.digest:
                return entry
            path = self.folder.step_folder(ref.attempt, ref.step)
            raise errors.StorageError(_NOT_SHARED.format(rank=self._rank), path=path)

        deadline = time.monotonic() + self.settings.visible_seconds
        while True:
            try:
                return self._retried(look)
            except errors.StorageError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _verify(self, found: Found) -> None:
        files = found.manifest.files
        if STRUCTURE_FILE not in {entry.path for entry in files}:
            raise digests.DamagedFileError(f"{STRUCTURE_FILE}: not listed in the manifest")
        self._await_whole(found, {STRUCTURE_FILE, *(entry.path for entry in self._share(found))})
        self._fit = fit = self._target.unverified_fit(found.folder)
        if fit is not None:
            self._plan = verified_read.plan_state(found.folder, files, fit.abstract, without=fit.changed.new)
        verified_read.verify_and_read(
            found.folder,
            self._share(found),
            self._plan,
            threads=self.settings.io_threads,
            transient_seconds=self.settings.transient_seconds,
        )

    def _share(self, found: Found) -> tuple[FileEntry, ...]:
        return digests.share_of(found.manifest.files, self._rank, self.coordination.process_count)

    def _await_whole(self, found: Found, paths: Container[str]) -> None:
        """Files of other ranks may show late or short; a process alone has nothing to wait for."""
        if self.coordination.process_count > 1:
            entries = [entry for entry in found.manifest.files if entry.path in paths]
            late_files.await_whole(found.folder, entries, deadline=self._visible_by)

    def _load(self, found: Found) -> tuple[PyTree, bytes | None, Changed]:
        ballot = Ballot(self.coordination, f"{restore_prefix(self.number)}/load")
        try:
            fit = self._target.fit(found.folder)
            state = forms.with_weak_types(self._state(found, fit), fit.stored, without=fit.changed.new)
            data = self._data(found)
        except errors.StructureMismatch as error:
            details = (error.leaf, error.expected, error.found, error.remedy, *error.others[:_REPORTED_LEAVES])
            ballot.cast(problem=Problem(ProblemKind.MISMATCH, str(error), details=details))
            raise
        except Exception as error:
            problem = votes.problem_of(error, where=found.folder)
            ballot.cast(problem=problem)
            raise self._error(self._rank, problem) from error
        ballot.cast()
        blamed = votes.first_problem(ballot.gather("every process to load its part", deadline=self._deadline))
        if blamed is not None:
            raise self._error(blamed.rank, blamed.problem)
        return state, data, fit.changed

    def _state(self, found: Found, fit: _Fit) -> PyTree:
        """The state from what was read during verification, otherwise by Orbax."""
        plan, self._plan = self._plan, None
        if plan is not None and self._fit is not None and self._fit.stored == fit.stored:
            mine = set(self._share(found))
            others = [entry for entry in found.manifest.files if entry not in mine]
            limits = self.settings
            seconds = limits.transient_seconds
            self._await_whole(found, {f"{STATE_FOLDER}/{path}" for path in plan.spans})
            verified_read.read_others(found.folder, others, plan, threads=limits.io_threads, transient_seconds=seconds)
            try:
                return plan.state()
            except NotUnderstoodError as error:
                logger.debug("%s: Orbax restores it: %s", found.folder, error)
        from holdfast.store.format import orbax_io

        folder, changed = found.folder / STATE_FOLDER, fit.changed
        return orbax_io.load(folder, fit.abstract, partly=bool(changed.dropped), without=changed.new)

    def _data(self, found: Found) -> bytes | None:
        name = data_file(self._rank)
        if name not in {entry.path for entry in found.manifest.files}:
            return None
        self._await_whole(found, {name})
        return self._retried((found.folder / name).read_bytes)

    # Coordination.

    def _announce(self, announcement: Announcement) -> Announcement:
        return announce(self.coordination, self._announcement_key(), announcement)

    def _await_announcement(self) -> Announcement:
        limit = self.settings.restore_seconds
        key = self._announcement_key()
        return await_announcement(self.coordination, key, deadline=self._deadline, limit_seconds=limit)

    def _announcement_key(self) -> str:
        return f"{restore_prefix(self.number)}/announcement/{self._round}"

    def _ballot(self) -> Ballot:
        return Ballot(self.coordination, f"{restore_prefix(self.number)}/verify/{self._round}")

    @property
    def _rank(self) -> int:
        return self.coordination.process_index

    def _retried(self, action: Callable[[], fs.T]) -> fs.T:
        return fs.retry_transient(action, seconds=self.settings.transient_seconds)

    def _error(self, rank: int, problem: Problem | None) -> Exception:
        if problem is None:
            return errors.RestoreError(f"{self.folder.root}: restoring failed in process {rank}, which gave no reason")
        if problem.kind is ProblemKind.MISMATCH:
            leaf, expected, found, remedy, *others = problem.details
            return errors.StructureMismatch(leaf, expected=expected, found=found, remedy=remedy, others=others)
        if problem.kind is ProblemKind.STORAGE:
            path = Path(problem.path or self.folder.root)
            return errors.StorageError(f"process {rank}: {problem.message}", path=path, errno=problem.errno)
        if problem.kind is ProblemKind.TIMEOUT:
            return errors.PeerLost(problem.message, limit_seconds=self.settings.restore_seconds)
        return errors.RestoreError(f"{self.folder.root}: restoring failed in process {rank}: {problem.message}")


def restore_prefix(number: int) -> str:
    """Prefix of all coordination keys of the attempt's ``number``-th restore."""
    return f"store/restore/{number}"
