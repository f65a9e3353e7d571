"""The parts of a save on rank 0: gathered from all ranks, and refused unless they make one checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.distributed import votes
from holdfast.distributed.votes import Ballot, Problem, ProblemKind
from holdfast_contract import codec
from holdfast_contract.manifest import FileEntry


@dataclass(frozen=True)
class WrittenPart:
    """What one rank wrote.

    ``local``: by path, digests of the leaves that every rank has for itself; they must be equal on all ranks. So must
    ``writer``.
    """

    files: tuple[FileEntry, ...]
    local: dict[str, str]
    writer: str = ""


class PartFailedError(Exception):
    """A rank could not write its part, or its part does not fit the others; ``vote`` names the rank and the problem."""

    def __init__(self, vote: votes.Vote) -> None:
        self.vote = vote
        super().__init__(vote)


def gather_parts(ballot: Ballot, folder: Path, deadline: float) -> list[FileEntry]:
    """The files of all parts, once every rank has written its own.

    Args:
        ballot: on which the ranks cast their parts.
        folder: the step's folder, which errors name.
        deadline: a reading of time.monotonic().

    Raises:
        PartFailedError: a rank reported a problem, or the parts do not make one checkpoint.
        PeerLost: a rank did not answer by the deadline.
    """
    gathered = ballot.gather("every process to write its part", deadline=deadline)
    failed = votes.first_problem(gathered)
    if failed is not None:
        raise PartFailedError(failed)
    parts = [codec.decode(WrittenPart, vote.payload) for vote in gathered]
    for vote, part in zip(gathered, parts, strict=True):
        message = _other_layout(part.writer, parts[0].writer) or _unequal(part.local, parts[0].local)
        if message:
            raise PartFailedError(votes.Vote(vote.rank, Problem(ProblemKind.OTHER, message, str(folder))))
    return [entry for part in parts for entry in part.files]


def _other_layout(found: str, expected: str) -> str:
    if found == expected:
        return ""
    return (
        "its state has other leaves, shapes, dtypes or shardings than the state of process 0, or the setting 'writer' "
        f"differs: found {found!r}, expected {expected!r}"
    )


def _unequal(local: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Only one copy of a leaf that each rank has for itself is stored, so another value on a rank would be lost."""
    differing = sorted(path for path in {*local, *expected} if local.get(path) != expected.get(path))
    if not differing:
        return ""
    return (
        f"{differing[0]}: the value differs from that of process 0 ({len(differing)} such leaf(s)); a leaf that is not an "
        "array over all processes must be equal on every process: shard it, or move it into the data position"
    )
