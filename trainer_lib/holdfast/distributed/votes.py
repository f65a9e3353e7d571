"""Votes: how ranks report to each other whether their part of a save or restore succeeded.

Each rank votes once per question. A rank that needs all votes polls for them with a deadline and stops at the first
problem, so one rank's failure is known everywhere at once and not only after a timeout.
"""

from __future__ import annotations

import enum
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast import errors
from holdfast.distributed.coordination import Coordination
from holdfast_contract import codec

_CHUNK_CHARACTERS: Final = 256 * 1024
"""Longest value of one key: the service accepts a few megabytes, and lists of many files are longer."""
_FIRST_PAUSE_SECONDS: Final = 0.001
_LONGEST_PAUSE_SECONDS: Final = 0.05


class ProblemKind(enum.StrEnum):
    """The kind of a rank's problem; it decides which error the others raise."""

    STORAGE = "storage"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    MISMATCH = "mismatch"
    TIMEOUT = "timeout"
    FOREIGN = "foreign"
    OTHER = "other"


@dataclass(frozen=True)
class Problem:
    """Why a rank votes no. ``path`` and ``errno`` name the file and the error, if a file is the cause."""

    kind: ProblemKind
    message: str
    path: str = ""
    errno: int = 0
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vote:
    """One rank's vote; a yes may have a ``payload``."""

    rank: int
    problem: Problem | None = None
    payload: str = ""


@dataclass(frozen=True)
class _Posted:
    rank: int
    chunks: int
    problem: Problem | None = None


class Ballot:
    """The votes on one question, below a key prefix that no other question uses."""

    def __init__(self, coordination: Coordination, prefix: str) -> None:
        self._coordination, self._prefix = coordination, prefix

    def cast(self, *, problem: Problem | None = None, payload: str = "") -> None:
        """Write this rank's vote. The first vote of a rank counts; later ones are ignored."""
        rank = self._coordination.process_index
        starts = range(0, len(payload), _CHUNK_CHARACTERS)
        for number, start in enumerate(starts):
            key = f"{self._prefix}/text/{rank}/{number}"
            self._coordination.create(key, payload[start : start + _CHUNK_CHARACTERS])
        posted = _Posted(rank, len(starts), problem)
        self._coordination.create(f"{self._prefix}/vote/{rank}", codec.encode(posted).decode())

    def gather(self, question: str, *, deadline: float) -> tuple[Vote, ...]:
        """All votes by rank; or, as soon as a vote has a problem, the votes so far.

        ``question`` completes "waiting for" in the error; ``deadline`` is a reading of time.monotonic(). Raises PeerLost,
        which names the ranks that did not answer.
        """
        asked = time.monotonic()
        pause = _FIRST_PAUSE_SECONDS
        while True:
            posted = self._posted()
            if len(posted) == self._coordination.process_count or any(p.problem for p in posted):
                return tuple(Vote(p.rank, p.problem, self._text(p)) for p in posted)
            if time.monotonic() >= deadline:
                missing = sorted(set(range(self._coordination.process_count)) - {p.rank for p in posted})
                raise errors.PeerLost(question, limit_seconds=round(deadline - asked, 3), missing=missing)
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def wait_for(self, rank: int, question: str, *, deadline: float) -> Vote:
        """Wait for one rank's vote.

        Args:
            rank: which rank.
            question: completes "waiting for" in the error.
            deadline: a reading of time.monotonic().

        Raises:
            PeerLost: the rank did not answer by the deadline.
        """
        seconds = max(0.001, deadline - time.monotonic())
        try:
            posted = codec.decode(_Posted, self._coordination.get(f"{self._prefix}/vote/{rank}", seconds))
        except TimeoutError:
            raise errors.PeerLost(question, limit_seconds=round(seconds, 3), missing=[rank]) from None
        return Vote(posted.rank, posted.problem, self._text(posted))

    def _posted(self) -> list[_Posted]:
        found = self._coordination.directory(f"{self._prefix}/vote")
        return sorted((codec.decode(_Posted, value) for value in found.values()), key=lambda p: p.rank)

    def _text(self, posted: _Posted) -> str:
        keys = (f"{self._prefix}/text/{posted.rank}/{n}" for n in range(posted.chunks))
        return "".join(self._coordination.get(key, _LONGEST_PAUSE_SECONDS * 100) for key in keys)


def first_problem(votes: tuple[Vote, ...]) -> Vote | None:
    """The vote of the lowest rank that has a problem; None if no vote has one."""
    return min((v for v in votes if v.problem), key=lambda v: v.rank, default=None)


def problem_of(error: BaseException, *, where: Path) -> Problem:
    """The problem that an error is, so that another process can raise it again. ``where``: the path if it names none."""
    if isinstance(error, errors.Superseded):
        return Problem(ProblemKind.SUPERSEDED, error.found, str(error.folder))
    if isinstance(error, errors.StorageError):
        return Problem(ProblemKind.STORAGE, str(error), str(error.path), error.errno)
    if isinstance(error, errors.PeerLost | TimeoutError):
        return Problem(ProblemKind.TIMEOUT, str(error), str(where))
    if isinstance(error, OSError) and error.errno:
        text = error.strerror if error.strerror not in {None, os.strerror(error.errno)} else type(error).__name__
        return Problem(ProblemKind.STORAGE, str(text), str(error.filename or where), error.errno)
    return Problem(ProblemKind.OTHER, f"{type(error).__name__}: {error}"[:4000], str(where))
