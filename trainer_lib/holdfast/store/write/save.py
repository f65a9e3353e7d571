"""One save on one rank, in the background: write, make durable, seal with a manifest, and agree on the outcome.

    rank 0                                   every rank
    open the step's folder      ->  vote  ->
                                             write its arrays and data, sync, hash -> vote
    gather; merge, sync, hash the rest
    decide (create-once key)
    write the manifest          -> outcome -> the same ref or error everywhere

The decision is what makes the outcome one: rank 0 writes the manifest only if it could create ``decision = commit``, a
rank that gives up waiting creates ``decision = abandon``; whoever comes second obeys.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast import errors
from holdfast.distributed import votes
from holdfast.distributed.coordination import Coordination
from holdfast.distributed.votes import Ballot, Problem, ProblemKind
from holdfast.state.structure import STRUCTURE_FILE
from holdfast.store.claim import RunClaim
from holdfast.store.format import fs, orbax_records
from holdfast.store.format.data_files import DATA_FOLDER
from holdfast.store.handle import SaveHandle, logger
from holdfast.store.store_settings import StoreSettings
from holdfast.store.write import manifests, space
from holdfast.store.write.save_work import SaveWork
from holdfast.store.write.step_files import StepFiles
from holdfast_contract import codec
from holdfast_contract.keys import MANIFEST_FILE, METADATA_FILE, PARTIAL_FILE, STATE_FOLDER
from holdfast_contract.manifest import CheckpointRef, FileEntry, digest_of, to_bytes

_COMMIT, _ABANDON = "commit", "abandon"


@dataclass(frozen=True)
class _Part:
    """What a rank wrote, and digests of the leaves that must be equal on all ranks, by path; so must ``writer``."""

    files: tuple[FileEntry, ...]
    local: dict[str, str]
    writer: str = ""


@dataclass(frozen=True)
class _Outcome:
    ref: CheckpointRef | None = None
    rank: int = 0
    problem: Problem | None = None


@dataclass(frozen=True)
class SaveContext:
    """Where and with whom. ``number`` counts the saves of this attempt, equally on all ranks."""

    claim: RunClaim
    coordination: Coordination
    settings: StoreSettings
    number: int
    deadline: float  # reading of time.monotonic()


@dataclass
class SaveJob:
    """Run on every rank; ``run`` settles the handle whatever happens."""

    context: SaveContext
    work: SaveWork
    handle: SaveHandle
    shortage: str = ""
    """On rank 0: what room on storage was missing when the save began."""
    _opened: bool = field(default=False, init=False)
    _expired: bool = field(default=False, init=False)

    @property
    def folder(self) -> Path:
        """The step's folder."""
        return self.context.claim.folder.step_folder(self.context.claim.attempt, self.work.step)

    @property
    def _files(self) -> StepFiles:
        return StepFiles(self.folder, self.context.settings, self.handle.timings)

    def run(self) -> None:
        """Do this rank's part and learn the outcome. Never raises."""
        try:
            self._do_part()
            outcome = self._lead() if self._is_leader else self._follow()
        except Exception as error:
            self.handle.finish(self._error(self._rank, votes.problem_of(error, where=self.folder)))
            logger.debug("save of step %d", self.work.step, exc_info=True)
            return
        self.handle.finish(outcome.ref or self._error(outcome.rank, outcome.problem))

    def expire(self) -> None:
        """Give up a save that did not settle in time, e.g. because storage hangs in this very process."""
        self._expired = True
        limit = self.context.settings.save_seconds
        problem = Problem(ProblemKind.TIMEOUT, f"not committed within {limit:g} s", str(self.folder))
        try:
            if self._decide(_ABANDON):
                self._publish(_Outcome(rank=self._rank, problem=problem))
        except Exception:
            logger.debug("could not tell the other processes", exc_info=True)
        self.handle.finish(self._error(self._rank, problem))

    # Every rank.

    def _do_part(self) -> None:
        opening = Ballot(self.context.coordination, self._key("open"))
        if self._is_leader:
            self._cast(opening, self._open)
        vote = opening.wait_for(0, "process 0 to open the step's folder", deadline=self.context.deadline)
        part = Ballot(self.context.coordination, self._key("part"))
        if vote.problem is None:
            self._cast(part, self._write_part)
        elif self._is_leader:
            part.cast(problem=vote.problem)  # the others say nothing: the blame is not theirs

    def _write_part(self) -> str:
        part = self.work.part
        files = self._files.write_part(part, self._rank)
        return codec.encode(_Part(files, part.snapshot.local_digests(), part.writer.agreement)).decode()

    def _follow(self) -> _Outcome:
        deadline = self.context.deadline
        outcome = self._await_outcome(max(0.001, deadline - time.monotonic()))
        if outcome is None and not self._decide(_ABANDON):
            outcome = self._await_outcome(self.context.settings.settle_seconds)
        if outcome is None:
            raise TimeoutError(f"the outcome was not known within {self.context.settings.save_seconds:g} s")
        return outcome

    def _await_outcome(self, seconds: float) -> _Outcome | None:
        try:
            return codec.decode(_Outcome, self.context.coordination.get(self._key("outcome"), seconds))
        except TimeoutError:
            return None

    # Rank 0.

    def _open(self) -> str:
        self.context.claim.require_current()
        if os.path.lexists(self.folder):
            fs.discard_folder(self.folder)  # left by a failed save of the same step
        fs.make_folder(self.folder)
        self._opened = True
        fs.write_file(self.folder / PARTIAL_FILE, codec.encode(self.context.claim.owner))
        for name in (STATE_FOLDER, f"{STATE_FOLDER}/{orbax_records.ARRAY_METADATA_FOLDER}", DATA_FOLDER):
            fs.make_folder(self.folder / name)
        fs.sync_folder(self.folder.parent)
        return ""

    def _lead(self) -> _Outcome:
        try:
            outcome = self._seal(self._gather_parts())
        except Exception as error:
            logger.debug("save of step %d", self.work.step, exc_info=True)
            self._decide(_ABANDON)
            outcome = self._failure(error)
        if outcome.ref is None:
            self._discard()
        self._publish(outcome)
        return outcome

    def _failure(self, error: Exception) -> _Outcome:
        """Who failed and why. A newer attempt explains whatever else went wrong: it takes our folder away."""
        try:
            self.context.claim.require_current()
        except errors.Superseded as superseded:
            return _Outcome(rank=self._rank, problem=votes.problem_of(superseded, where=self.folder))
        except Exception:
            logger.debug("the owner record cannot be read now", exc_info=True)
        if isinstance(error, _PartFailed):
            return _Outcome(rank=error.vote.rank, problem=self._with_shortage(error.vote.problem))
        silent = error.missing if isinstance(error, errors.PeerLost) else ()
        problem = self._with_shortage(votes.problem_of(error, where=self.folder))
        return _Outcome(rank=silent[0] if silent else self._rank, problem=problem)

    def _with_shortage(self, problem: Problem | None) -> Problem | None:
        if problem is None or problem.errno not in space.FULL or not self.shortage:
            return problem
        return replace(problem, message=f"{problem.message}; {self.shortage}")

    def _gather_parts(self) -> list[FileEntry]:
        ballot = Ballot(self.context.coordination, self._key("part"))
        gathered = ballot.gather("every process to write its part", deadline=self.context.deadline)
        blamed = votes.first_problem(gathered)
        if blamed is not None:
            raise _PartFailed(blamed)
        parts = [codec.decode(_Part, vote.payload) for vote in gathered]
        for vote, part in zip(gathered, parts, strict=True):
            self._require_one_layout(vote.rank, part.writer, parts[0].writer)
            self._require_equal(vote.rank, part.local, parts[0].local)
        return [entry for part in parts for entry in part.files]

    def _require_one_layout(self, rank: int, found: str, expected: str) -> None:
        if found != expected:
            message = (
                f"its state has other leaves, shapes, dtypes or shardings than process 0's, or the setting 'writer' "
                f"differs: found {found!r}, expected {expected!r}"
            )
            raise _PartFailed(votes.Vote(rank, Problem(ProblemKind.OTHER, message, str(self.folder))))

    def _require_equal(self, rank: int, local: Mapping[str, str], expected: Mapping[str, str]) -> None:
        """Only one copy of a leaf that each rank has for itself is stored: another value on a rank would be lost."""
        differing = sorted(path for path in {*local, *expected} if local.get(path) != expected.get(path))
        if differing:
            message = (
                f"{differing[0]}: the value differs from process 0's ({len(differing)} such leaf(s)); a leaf that is no "
                "array over all processes must be equal everywhere: shard it, or put it into the data position"
            )
            raise _PartFailed(votes.Vote(rank, Problem(ProblemKind.OTHER, message, str(self.folder))))

    def _seal(self, parts: list[FileEntry]) -> _Outcome:
        part = self.work.part
        with self._files.timed("merge_seconds"):
            part.writer.join_parts(self.folder / STATE_FOLDER)
        fs.write_file(self.folder / STRUCTURE_FILE, part.structure.to_bytes())
        if self.work.metadata is not None:
            fs.write_file(self.folder / METADATA_FILE, self.work.metadata)
        known = {entry.path for entry in parts}
        rest = self._files.make_durable([p for p in self._files.names() if p not in known and p != PARTIAL_FILE])
        for folder in fs.walk_folders(self.folder):
            fs.sync_folder(folder)
        manifest = to_bytes(manifests.build(self.context.claim, self.work, (*parts, *rest), self.context.coordination))
        self.context.claim.require_current()
        if not self._decide(_COMMIT):
            raise TimeoutError("another process gave the save up")
        with self._files.timed("manifest_seconds"):
            fs.publish_file(self.folder / MANIFEST_FILE, manifest)
        self._remove_mark()
        return _Outcome(CheckpointRef(self.context.claim.attempt, self.work.step, digest_of(manifest)))

    def _remove_mark(self) -> None:
        try:
            fs.remove_file(self.folder / PARTIAL_FILE)
        except OSError as error:
            logger.warning("%s: could not be removed (%s); the checkpoint is committed", self.folder, error)

    def _discard(self) -> None:
        """Remove what a failed save left, in one rename: also a manifest that is there but could not be made durable."""
        if not self._opened or self._expired or not self.folder.exists():
            return  # after expiry the folder may be another save's already
        try:
            fs.discard_folder(self.folder)
        except OSError as error:
            logger.warning("%s: leftovers of a failed save stay until the next attempt (%s)", self.folder, error)

    # Shared.

    @property
    def _rank(self) -> int:
        return self.context.coordination.process_index

    @property
    def _is_leader(self) -> bool:
        return self._rank == 0

    def _key(self, name: str) -> str:
        return f"{save_prefix(self.context.number)}/{name}"

    def _decide(self, decision: str) -> bool:
        """Create the decision; True if it is now ours or the same."""
        if self.context.coordination.create(self._key("decision"), decision):
            return True
        return self.context.coordination.try_get(self._key("decision")) == decision

    def _publish(self, outcome: _Outcome) -> None:
        self.context.coordination.create(self._key("outcome"), codec.encode(outcome).decode())

    def _cast(self, ballot: Ballot, action: Callable[[], str]) -> None:
        try:
            payload = action()
        except Exception as error:
            logger.debug("save of step %d", self.work.step, exc_info=True)
            ballot.cast(problem=votes.problem_of(error, where=self.folder))
        else:
            ballot.cast(payload=payload)

    def _error(self, rank: int, problem: Problem | None) -> Exception:
        attempt, step = self.context.claim.attempt, self.work.step
        if problem is None:
            problem = Problem(ProblemKind.OTHER, "no reason was given", str(self.folder))
        if problem.kind is ProblemKind.SUPERSEDED:
            return errors.Superseded(self.context.claim.folder.root, attempt=attempt, found=problem.message)
        kind = errors.SaveTimeout if problem.kind is ProblemKind.TIMEOUT else errors.SaveError
        path = Path(problem.path or self.folder)
        return kind(problem.message, attempt=attempt, step=step, rank=rank, path=path, errno=problem.errno)


class _PartFailed(Exception):  # carries a vote, never leaves this file
    def __init__(self, vote: votes.Vote) -> None:
        self.vote = vote
        super().__init__(vote)


def save_prefix(number: int) -> str:
    """Below this all keys of the attempt's ``number``-th save lie."""
    return f"store/save/{number}"
