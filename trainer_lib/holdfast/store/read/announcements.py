"""What rank 0 announces to all ranks during a restore: which candidate to verify next, or how the choice ended."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass

from holdfast import errors
from holdfast.distributed.coordination import Coordination
from holdfast.distributed.votes import Problem
from holdfast_contract import codec
from holdfast_contract.manifest import CheckpointRef, Rejection


class NextStep(enum.StrEnum):
    """What every rank does next."""

    VERIFY = "verify"
    ACCEPT = "accept"
    NOTHING = "nothing"  # the run has no candidate at all
    EXHAUSTED = "exhausted"  # there were candidates, all refused
    FAILED = "failed"


@dataclass(frozen=True)
class Announcement:
    """``ref``: the candidate to verify or to accept. ``rejected``: all refusals, once the choice has ended.

    ``rank`` and ``problem``: which rank failed, and why.
    """

    next: NextStep
    ref: CheckpointRef | None = None
    rejected: tuple[Rejection, ...] = ()
    rank: int = 0
    problem: Problem | None = None


def announce(coordination: Coordination, key: str, announcement: Announcement) -> Announcement:
    """Publish an announcement and return it, because rank 0 acts on it like every other rank.

    Args:
        coordination: the key-value store of the ranks.
        key: below the restore's own prefix, one per round; it can be written once.
        announcement: what every rank does next.
    """
    coordination.create(key, codec.encode(announcement).decode())
    return announcement


def await_announcement(coordination: Coordination, key: str, *, deadline: float, limit_seconds: float) -> Announcement:
    """Wait for what rank 0 announces under ``key``.

    Args:
        coordination: the key-value store of the ranks.
        key: below the restore's own prefix, one per round.
        deadline: a reading of time.monotonic().
        limit_seconds: the limit that the error names.

    Raises:
        PeerLost: rank 0 did not announce anything by the deadline.
    """
    seconds = max(0.001, deadline - time.monotonic())
    try:
        return codec.decode(Announcement, coordination.get(key, seconds))
    except TimeoutError:
        what = "process 0 to choose a checkpoint"
        raise errors.PeerLost(what, limit_seconds=limit_seconds, missing=[0]) from None
