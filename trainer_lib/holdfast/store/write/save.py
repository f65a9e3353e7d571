"""One save on one rank, in the background: write, make durable, seal with a manifest, and agree on the outcome.

    rank 0                                   every rank
    open the step's folder      ->  vote  ->
                                             write its arrays and data, sync, hash -> vote
    gather; merge, sync, hash the rest
    decide (create-once key)
    write the manifest          -> outcome -> the same ref or error everywhere

The decision makes the outcome the same everywhere: rank 0 writes the manifest only after it has created
``decision = commit``; a rank that gives up waiting creates ``decision = abandon``. The key can be created once, and the
rank that comes second obeys it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
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
from holdfast.store.write.parts import PartFailedError, WrittenPart, gather_parts
from holdfast.store.write.save_work import SaveWork
from holdfast.store.write.step_files import StepFiles
from holdfast_contract import codec
from holdfast_contract.keys import MANIFEST_FILE, METADATA_FILE, PARTIAL_FILE, STATE_FOLDER
from holdfast_contract.manifest import CheckpointRef, FileEntry, digest_of, to_bytes

_COMMIT, _ABANDON = "commit", "abandon"


@dataclass(frozen=True)
class _Outcome:
    ref: CheckpointRef | None = None
    rank: int = 0
    problem: Problem | None = None


@dataclass(frozen=True)
class SaveContext:
    """The attempt that saves. ``number`` counts its saves, equally on all ranks."""

    claim: RunClaim
    coordination: Coordination
    settings: StoreSettings
    number: int
    deadline: float  # reading of time.monotonic()


@dataclass
class SaveJob:
    """One save on one rank; ``run`` always finishes the handle."""

    context: SaveContext
    work: SaveWork
    handle: SaveHandle
    shortage: str = ""
    """On rank 0: how much room storage lacked when the save began; "" if it had enough."""
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
        """Write this rank's part and wait for the outcome. Never raises."""
        try:
            self._do_part()
            outcome = self._lead() if self._is_leader else self._follow()
        except Exception as error:
            self.handle.finish(self._error(self._rank, votes.problem_of(error, where=self.folder)))
            logger.debug("save of step %d", self.work.step, exc_info=True)
            return
        self.handle.finish(outcome.ref or self._error(outcome.rank, outcome.problem))

    def expire(self) -> None:
        """Give up a save that did not finish in time, for example because storage hangs in this process."""
        self._expired = True
        limit = self.context.settings.save_seconds
        problem = Problem(ProblemKind.TIMEOUT, f"not committed within {limit:g} s", str(self.folder))
        try:
            if self._decide(_ABANDON):
                self._publish(_Outcome(rank=self._rank, problem=problem))
        except Exception:
            logger.debug("the other processes could not be notified", exc_info=True)
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
            part.cast(problem=vote.problem)  # the other ranks cast no vote: they are not to blame

    def _write_part(self) -> str:
        part = self.work.part
        files = self._files.write_part(part, self._rank)
        return codec.encode(WrittenPart(files, part.snapshot.local_digests(), part.writer.agreement)).decode()

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
        """Which rank failed and why. If a newer attempt has begun, that is the cause: it deletes this save's folder."""
        try:
            self.context.claim.require_current()
        except errors.Superseded as superseded:
            return _Outcome(rank=self._rank, problem=votes.problem_of(superseded, where=self.folder))
        except Exception:
            logger.debug("the owner record cannot be read now", exc_info=True)
        if isinstance(error, PartFailedError):
            return _Outcome(rank=error.vote.rank, problem=self._with_shortage(error.vote.problem))
        silent = error.missing if isinstance(error, errors.PeerLost) else ()
        problem = self._with_shortage(votes.problem_of(error, where=self.folder))
        return _Outcome(rank=silent[0] if silent else self._rank, problem=problem)

    def _with_shortage(self, problem: Problem | None) -> Problem | None:
        if problem is None or problem.errno not in space.FULL or not self.shortage:
            return problem
        return replace(problem, message=f"{problem.message}; {self.shortage}")

    def _gather_parts(self) -> list[FileEntry]:
        return gather_parts(Ballot(self.context.coordination, self._key("part")), self.folder, self.context.deadline)

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
            raise TimeoutError("another process gave up the save")
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
        """Remove a failed save in one rename, together with a manifest that was written but could not be made durable."""
        if not self._opened or self._expired or not self.folder.exists():
            return  # after expiry the folder may already belong to another save
        try:
            fs.discard_folder(self.folder)
        except OSError as error:
            logger.warning("%s: the files of a failed save stay until the next attempt (%s)", self.folder, error)

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
        """Create the decision; True if it was created here, or exists and is the same."""
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


def save_prefix(number: int) -> str:
    """Prefix of all coordination keys of the attempt's ``number``-th save."""
    return f"store/save/{number}"
