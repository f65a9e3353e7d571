"""Claiming a run: the owner record, the attempt's own folder, and proof that every rank can write there."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast import errors
from holdfast.distributed.coordination import Coordination
from holdfast.distributed.votes import Ballot, Problem, ProblemKind, Vote, first_problem, problem_of
from holdfast.store.format import fs
from holdfast.store.store_settings import StoreSettings
from holdfast_contract import codec
from holdfast_contract.keys import MANIFEST_FILE, PARTIAL_FILE, TRASH_PREFIX
from holdfast_contract.manifest import Owner
from holdfast_contract.runfolder import BadManifestError, OwnerRecordError, RunFolder, read_regular_file

PROBE_PREFIX: Final = ".probe-"


@dataclass(frozen=True)
class RunClaim:
    """The claim of one job to one attempt of a run."""

    folder: RunFolder
    attempt: int
    owner: Owner

    @property
    def title(self) -> str:
        """The claim in words, equal on all ranks."""
        return f"attempt {self.attempt} of run {self.folder.run!r} (job UID {self.owner.job_uid or 'none'})"

    def require_current(self) -> None:
        """Raise Superseded if a newer attempt or another owner has appeared; also OwnerRecordError, OSError."""
        recorded = self.folder.owner()
        if recorded is None:
            raise self._superseded("the owner record is gone")
        if recorded.job_uid != self.owner.job_uid:
            raise self._superseded(
                f"the run was taken over by {recorded.namespace}/{recorded.name} ({recorded.job_uid})"
            )
        highest = max(recorded.attempt, self.folder.newest_attempt())
        if highest > self.attempt:
            raise self._superseded(f"attempt {highest} has begun")

    def _superseded(self, found: str) -> errors.Superseded:
        return errors.Superseded(self.folder.root, attempt=self.attempt, found=found)


def claim_run(claim: RunClaim, coordination: Coordination, *, take_over: bool, settings: StoreSettings) -> None:
    """Claim the run for this attempt. Every rank calls it once, before any other use of the store.

    Args:
        claim: the run, the attempt and the job.
        coordination: the key-value store of the attempt's ranks.
        take_over: claim the run even if another job owns it.
        settings: has the limits in seconds.

    Raises:
        StorageUnusable: the path is missing, not writable, or not the same storage on every rank.
        ForeignRun: another job owns the run and ``take_over`` is False.
        Superseded: this attempt or a later one has begun already, or another process takes part as this rank.
        PeerLost: a rank did not answer within ``settings.claim_seconds``.
        WrongWorld: process 0 belongs to another job.
    """
    deadline = time.monotonic() + settings.claim_seconds
    opening = Ballot(coordination, "store/claim/open")
    if coordination.process_index == 0:
        _cast(opening, claim, lambda: f"{_open(claim, take_over=take_over)} {claim.title}")
    token, _, title = _payload_of_rank_0(opening, claim, deadline=deadline).partition(" ")
    if title != claim.title:
        # Without a vote, because these ranks are not our peers.
        raise errors.WrongWorld(expected=claim.title, found=title)
    if not coordination.create(f"store/claim/rank/{coordination.process_index}", ""):
        raise errors.Superseded(
            claim.folder.root,
            attempt=claim.attempt,
            found=f"another process takes part as process {coordination.process_index}",
        )
    proving = Ballot(coordination, "store/claim/prove")
    _cast(proving, claim, lambda: _prove(claim, coordination.process_index, token, settings.visible_seconds))
    votes = proving.gather("every process to prove that it can write to storage", deadline=deadline)
    _raise_first(votes, claim)
    fs.remove_file(_probe(claim, coordination.process_index))


def sweep_leftovers(claim: RunClaim) -> tuple[Path, ...]:
    """Remove what killed writers left in this and older attempts: trash, and saves that were never committed.

    It touches only folders with Holdfast's own marks, and nothing of a later attempt. It also ends the save of an older
    writer that is still alive, because that save's folder is gone before it can be sealed. Returns what was removed.
    Raises OSError.
    """
    removed = []
    for attempt in claim.folder.attempts():
        if attempt > claim.attempt:
            continue
        for entry in sorted(claim.folder.attempt_folder(attempt).iterdir()):
            if entry.is_symlink() or not entry.is_dir():
                continue
            if entry.name.startswith(TRASH_PREFIX):
                fs.empty_trash(entry)
                removed.append(entry)
            elif (
                attempt < claim.attempt and _is_abandoned_save(entry) and fs.discard_folder(entry, unless=MANIFEST_FILE)
            ):
                removed.append(entry)
    return tuple(removed)


def _is_abandoned_save(folder: Path) -> bool:
    return os.path.lexists(folder / PARTIAL_FILE) and not os.path.lexists(folder / MANIFEST_FILE)


def _open(claim: RunClaim, *, take_over: bool) -> str:
    """Rank 0: take the run and return the token that the other ranks must be able to read."""
    folder = claim.folder
    if not folder.root.parent.is_dir():
        raise errors.StorageUnusable(
            "the checkpoint path does not exist or is not a folder; mount the volume there, or create the folder",
            path=folder.root.parent,
        )
    fs.make_folder(folder.root, exist_ok=True)
    _take_ownership(claim, take_over=take_over)
    try:
        fs.make_folder(folder.attempt_folder(claim.attempt))
    except FileExistsError:
        _require_folder(folder.attempt_folder(claim.attempt))
        raise errors.Superseded(
            folder.root, attempt=claim.attempt, found="another process holds this attempt"
        ) from None
    fs.sync_folder(folder.root)
    token = secrets.token_hex(8)
    _write_probe(claim, 0, token)
    return token


def _require_folder(path: Path) -> None:
    """Raise StorageUnusable if something else than a folder has the attempt's name: no other process holds the attempt."""
    if path.is_symlink() or not path.is_dir():
        found = "a symbolic link" if path.is_symlink() else "a file"
        raise errors.StorageUnusable(
            f"found {found}, allowed: nothing, because this attempt makes its folder there; move or remove it",
            path=path,
        )


def _take_ownership(claim: RunClaim, *, take_over: bool) -> None:
    folder, owner = claim.folder, claim.owner
    recorded = folder.owner()
    if recorded is not None and recorded.job_uid != owner.job_uid and not take_over:
        raise errors.ForeignRun(folder.root, owner=owner, recorded=recorded)
    known = max(recorded.attempt if recorded and recorded.job_uid == owner.job_uid else 0, folder.newest_attempt())
    if known > claim.attempt:
        raise errors.Superseded(folder.root, attempt=claim.attempt, found=f"attempt {known} has begun")
    if recorded is not None:
        fs.publish_file(folder.owner_file, codec.encode(owner))
        return
    try:
        fs.publish_new_file(folder.owner_file, codec.encode(owner))
    except FileExistsError:
        winner = folder.owner()
        if winner is None or winner.job_uid != owner.job_uid:
            raise errors.ForeignRun(folder.root, owner=owner, recorded=winner or owner) from None


def _prove(claim: RunClaim, rank: int, token: str, visible_seconds: float) -> str:
    """Read the probe file of rank 0; write this rank's own, and read it back."""

    def visible() -> None:
        try:
            data = read_regular_file(_probe(claim, 0), 1024)
        except BadManifestError as found:  # its name shows before its bytes do
            raise TimeoutError(f"a file that is not readable: {found}") from None
        if data is None or data.decode(errors="replace") != token:
            raise TimeoutError("no such file" if data is None else "a file with other content")

    try:
        _until_visible(visible, visible_seconds)
    except TimeoutError as missing:
        raise errors.StorageUnusable(
            f"process {rank} does not see what process 0 wrote there (within {visible_seconds:g} s: {missing}, "
            f"{_folder_state(claim)}); the path must be the same shared volume everywhere",
            path=_probe(claim, 0),
        ) from None
    if rank != 0:
        _write_probe(claim, rank, token)
    return ""


def _folder_state(claim: RunClaim) -> str:
    """What this process sees of the run's folder, for the person who looks for the cause."""
    if not claim.folder.root.is_dir():
        return "the run's folder does not exist"
    return f"the run's last attempt folders: {list(claim.folder.attempts())[-4:]}"


def _until_visible(look: Callable[[], None], seconds: float) -> None:
    """Call ``look`` until it does not raise TimeoutError; it is called once more after ``seconds`` before that is raised."""
    deadline = time.monotonic() + seconds
    while True:
        late = time.monotonic() > deadline
        try:
            return look()
        except TimeoutError:
            if late:
                raise
        time.sleep(0.02)


def _write_probe(claim: RunClaim, rank: int, token: str) -> None:
    path = _probe(claim, rank)
    fs.publish_file(path, token.encode())
    if path.read_bytes() != token.encode():
        raise errors.StorageUnusable("a file read back differs from what was written", path=path)


def _probe(claim: RunClaim, rank: int) -> Path:
    return claim.folder.attempt_folder(claim.attempt) / f"{PROBE_PREFIX}{rank}"


def _cast(ballot: Ballot, claim: RunClaim, action: Callable[[], str]) -> None:
    try:
        ballot.cast(payload=action())
    except errors.ForeignRun as error:
        recorded = codec.encode(error.recorded).decode()
        ballot.cast(problem=Problem(ProblemKind.FOREIGN, str(error), str(claim.folder.root), details=(recorded,)))
    except Exception as error:  # any error must reach the other ranks
        ballot.cast(problem=problem_of(error, where=claim.folder.root))


def _payload_of_rank_0(ballot: Ballot, claim: RunClaim, *, deadline: float) -> str:
    vote = ballot.wait_for(0, "process 0 to claim the run", deadline=deadline)
    _raise_first((vote,), claim)
    return vote.payload


def _raise_first(votes: tuple[Vote, ...], claim: RunClaim) -> None:
    vote = first_problem(votes)
    if vote is None or vote.problem is None:
        return
    problem = vote.problem
    if problem.kind is ProblemKind.FOREIGN:
        recorded = codec.decode(Owner, problem.details[0])
        raise errors.ForeignRun(claim.folder.root, owner=claim.owner, recorded=recorded)
    if problem.kind is ProblemKind.SUPERSEDED:
        raise errors.Superseded(claim.folder.root, attempt=claim.attempt, found=problem.message)
    raise errors.StorageUnusable(
        f"process {vote.rank}: {problem.message}", path=Path(problem.path or claim.folder.root), errno=problem.errno
    )


__all__ = ["OwnerRecordError", "RunClaim", "claim_run", "sweep_leftovers"]
