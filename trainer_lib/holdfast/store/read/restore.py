"""Choosing a checkpoint together: all ranks walk down from the pin, and one rank's refusal refuses it for all.

Rank 0 leads. For each candidate every rank verifies its share of the files, so that each byte is hashed once in the
world, and votes; rank 0 announces what follows. What a rank needs of its share it keeps from the same reading, and
hands out only when every rank has said yes. A fault of storage itself (no answer, no access) is never a refusal: it ends
the restore, because an older checkpoint behind the same fault would silently cost work.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast import errors
from holdfast.distributed import votes
from holdfast.distributed.coordination import Coordination
from holdfast.distributed.votes import Ballot, Problem, ProblemKind
from holdfast.state import structure
from holdfast.state.changes import NOTHING_ALLOWED, NOTHING_CHANGED, Allowed, Changed, compare
from holdfast.state.structure import STRUCTURE_FILE, PyTree
from holdfast.store.format import digests, fs
from holdfast.store.format.data_files import data_file
from holdfast.store.handle import logger
from holdfast.store.read import verified_read
from holdfast.store.read.candidates import NEWEST, Candidates, CheckpointChoice, Pin
from holdfast.store.read.read_plan import NotUnderstoodError, ReadPlan
from holdfast.store.store_settings import StoreSettings
from holdfast_contract import codec
from holdfast_contract.keys import STATE_FOLDER
from holdfast_contract.manifest import CheckpointRef, FileEntry, Manifest, Rejection
from holdfast_contract.runfolder import Found, RunFolder

_REPORTED_LEAVES: Final = 100  # of a mismatch, to the other ranks
_NOT_SHARED: Final = "process {rank} does not see the manifest that process 0 sees; is the path the same shared volume?"


@dataclass(frozen=True)
class Restored:
    """What all ranks agreed on. ``data`` is this rank's data position, None if none was saved for this rank."""

    state: PyTree
    data: bytes | None
    ref: CheckpointRef
    manifest: Manifest
    rejected: tuple[Rejection, ...]
    timings: dict[str, float] = field(default_factory=dict)
    changed: Changed = NOTHING_CHANGED
    """Leaves that differ as allowed; the new ones are in ``state`` as the caller described them."""
    folder: Path = Path()
    """The checkpoint's own."""

    def positions(self) -> tuple[bytes | None, ...]:
        """The data position of every process that took part in the save, by its number then. Raises OSError."""
        listed = {entry.path for entry in self.manifest.files}
        names = [data_file(rank) for rank in range(self.manifest.process_count)]
        return tuple((self.folder / name).read_bytes() if name in listed else None for name in names)


class _Next(enum.StrEnum):
    VERIFY = "verify"
    ACCEPT = "accept"
    NOTHING = "nothing"  # the run has no candidate at all
    EXHAUSTED = "exhausted"  # there were candidates, all refused
    FAILED = "failed"


@dataclass(frozen=True)
class _Word:
    """What rank 0 announces."""

    next: _Next
    ref: CheckpointRef | None = None
    rejected: tuple[Rejection, ...] = ()
    rank: int = 0
    problem: Problem | None = None


@dataclass(frozen=True)
class _Wanted:
    """What the caller wants to be filled."""

    abstract: PyTree
    allowed: Allowed

    def compared(self, folder: Path) -> Changed:
        """How it differs from what is stored. Raises StructureMismatch."""
        stored = structure.from_bytes((folder / STRUCTURE_FILE).read_bytes())
        return compare(stored, structure.structure_of(self.abstract), self.allowed)

    def new_in(self, folder: Path) -> frozenset[str]:
        """Paths of leaves that are not stored, as far as the record can be believed before it is verified."""
        try:
            return self.compared(folder).new
        except (OSError, ValueError, errors.HoldfastError):
            return frozenset()


@dataclass
class Restore:
    """One joint restore; every rank makes one with the same ``number`` and calls ``run``."""

    folder: RunFolder
    coordination: Coordination
    settings: StoreSettings
    number: int
    attempt: int
    timings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.settings.restore_seconds
        self._round = 0
        self._wanted = _Wanted(None, NOTHING_ALLOWED)
        self._plan: ReadPlan | None = None
        self._new: frozenset[str] = frozenset()

    def run(
        self, pin: Pin, abstract: PyTree, allowed: Allowed = NOTHING_ALLOWED, choice: CheckpointChoice = NEWEST
    ) -> Restored | None:
        """The newest valid checkpoint at or below ``pin``, or the ``choice``; None if there is no candidate at all.

        Raises:
            NoValidCheckpoint: candidates exist and all were refused, with every reason.
            StructureMismatch: the checkpoint is sound and ``abstract`` differs by more than is ``allowed``.
            StorageError: storage did not answer or denied access.
            RestoreError: loading failed on some rank for another reason.
            PeerLost: a rank did not answer in time.
        """
        structure.structure_of(abstract)  # refuses a leaf that cannot be restored before anything is read
        self._wanted = _Wanted(abstract, allowed)
        start = time.monotonic()
        word, found = self._choose(pin, choice)
        self.timings["verify_seconds"] = time.monotonic() - start
        if word.next is _Next.NOTHING:
            return None
        if word.next is _Next.EXHAUSTED:
            raise errors.NoValidCheckpoint(self.folder.root, word.rejected)
        if word.next is _Next.FAILED or found is None or word.ref is None:
            raise self._error(word.rank, word.problem)
        start = time.monotonic()
        state, data, changed = self._load(found)
        self.timings["load_seconds"] = time.monotonic() - start
        return Restored(
            state, data, word.ref, found.manifest, word.rejected, self.timings, changed=changed, folder=found.folder
        )

    # Choosing.

    def _choose(self, pin: Pin, choice: CheckpointChoice) -> tuple[_Word, Found | None]:
        leader = self._lead(pin, choice) if self._rank == 0 else None
        found: Found | None = None
        while True:
            word = next(leader) if leader else self._hear()
            if word.next is not _Next.VERIFY or word.ref is None:
                return word, found
            found = self._vote_on(word.ref)

    def _lead(self, pin: Pin, choice: CheckpointChoice) -> Iterator[_Word]:
        """Rank 0: each word is announced, then acted on by this rank like by any other."""
        refused: list[Rejection] = []
        try:
            for entry in Candidates(self.folder, self.attempt, self.settings).in_order(pin, choice):
                if isinstance(entry, Rejection):
                    refused.append(entry)
                    continue
                yield self._say(_Word(_Next.VERIFY, entry.ref))
                rejection, blamed = self._count(entry.ref)
                if blamed is not None:
                    yield self._say(_Word(_Next.FAILED, rank=blamed.rank, problem=blamed.problem))
                if rejection is None:
                    yield self._say(_Word(_Next.ACCEPT, entry.ref, tuple(refused)))
                else:
                    refused.append(rejection)
            last = _Next.EXHAUSTED if refused else _Next.NOTHING
            yield self._say(_Word(last, rejected=tuple(refused)))
        except (OSError, errors.HoldfastError) as error:
            yield self._say(_Word(_Next.FAILED, problem=votes.problem_of(error, where=self.folder.root)))

    def _count(self, ref: CheckpointRef) -> tuple[Rejection | None, votes.Vote | None]:
        """(refusal, nobody to blame), (None, blamed rank), or (None, None) if every rank said yes."""
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
        self._plan = None  # of the candidate before: its memory is free again
        try:
            found = self._see(ref)
            self._verify(found)
        except digests.DamagedFileError as error:
            self._ballot().cast(problem=Problem(ProblemKind.REJECTED, str(error)))
            return None
        except Exception as error:  # the other ranks must learn of it, whatever it is
            self._ballot().cast(problem=votes.problem_of(error, where=self.folder.step_folder(ref.attempt, ref.step)))
            return None
        self._ballot().cast()
        return found

    def _see(self, ref: CheckpointRef) -> Found:
        """The same manifest as rank 0 saw; on a network file system it may take a moment to appear here."""

        def look() -> Found:
            entry = self.folder.look(ref.attempt, ref.step)
            if isinstance(entry, Found) and entry.ref.digest == ref.digest:
                return entry
            path = self.folder.step_folder(ref.attempt, ref.step)
            raise errors.StorageError(_NOT_SHARED.format(rank=self._rank), path=path)

        deadline = time.monotonic() + self.settings.visible_seconds
        while True:
            try:
                return self._patiently(look)
            except errors.StorageError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _verify(self, found: Found) -> None:
        files = found.manifest.files
        if STRUCTURE_FILE not in {entry.path for entry in files}:
            raise digests.DamagedFileError(f"{STRUCTURE_FILE}: not listed in the manifest")
        self._new = self._wanted.new_in(found.folder)
        self._plan = verified_read.plan_state(found.folder, files, self._wanted.abstract, without=self._new)
        verified_read.verify_and_read(
            found.folder,
            self._share(found),
            self._plan,
            threads=self.settings.io_threads,
            transient_seconds=self.settings.transient_seconds,
        )

    def _share(self, found: Found) -> tuple[FileEntry, ...]:
        return digests.share_of(found.manifest.files, self._rank, self.coordination.process_count)

    def _load(self, found: Found) -> tuple[PyTree, bytes | None, Changed]:
        ballot = Ballot(self.coordination, f"{restore_prefix(self.number)}/load")
        try:
            changed = self._wanted.compared(found.folder)
            state = self._state(found, changed)
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
        return state, data, changed

    def _state(self, found: Found, changed: Changed) -> PyTree:
        """From what was read while verifying, else by Orbax."""
        plan, self._plan = self._plan, None
        if plan is not None and self._new == changed.new:
            mine = set(self._share(found))
            others = [entry for entry in found.manifest.files if entry not in mine]
            limits = self.settings
            seconds = limits.transient_seconds
            verified_read.read_others(found.folder, others, plan, threads=limits.io_threads, transient_seconds=seconds)
            try:
                return plan.state()
            except NotUnderstoodError as error:
                logger.debug("%s: left to Orbax: %s", found.folder, error)
        from holdfast.store.format import orbax_io

        folder, partly = found.folder / STATE_FOLDER, bool(changed.dropped)
        return orbax_io.load(folder, self._wanted.abstract, partly=partly, without=changed.new)

    def _data(self, found: Found) -> bytes | None:
        name = data_file(self._rank)
        if name not in {entry.path for entry in found.manifest.files}:
            return None
        return self._patiently((found.folder / name).read_bytes)

    # Talking.

    def _say(self, word: _Word) -> _Word:
        self.coordination.create(self._word_key(), codec.encode(word).decode())
        return word

    def _hear(self) -> _Word:
        seconds = max(0.001, self._deadline - time.monotonic())
        try:
            return codec.decode(_Word, self.coordination.get(self._word_key(), seconds))
        except TimeoutError:
            what = "process 0 to choose a checkpoint"
            raise errors.PeerLost(what, limit_seconds=self.settings.restore_seconds, missing=[0]) from None

    def _word_key(self) -> str:
        return f"{restore_prefix(self.number)}/word/{self._round}"

    def _ballot(self) -> Ballot:
        return Ballot(self.coordination, f"{restore_prefix(self.number)}/verify/{self._round}")

    @property
    def _rank(self) -> int:
        return self.coordination.process_index

    def _patiently(self, action: Callable[[], fs.T]) -> fs.T:
        return fs.retry_transient(action, seconds=self.settings.transient_seconds)

    def _error(self, rank: int, problem: Problem | None) -> Exception:
        if problem is None:
            return errors.RestoreError(f"{self.folder.root}: restoring failed in process {rank} for no stated reason")
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
    """Below this all keys of the attempt's ``number``-th restore lie."""
    return f"store/restore/{number}"
