"""Leaving the loop in order: the last committed step is saved if it is not yet, or an error says what is lost and why.

A save is collective. So each rank says first where it left the loop, and all of them come to the same verdict.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.distributed.coordination import Coordination
from holdfast.distributed.votes import Ballot
from holdfast.errors import HoldfastError, RanksDisagree, StepsNotCommitted, StepsNotSaved
from holdfast_contract import codec
from holdfast_contract.manifest import CheckpointRef

LEAVE_SECONDS: Final = 60.0
"""How long a rank that has left the loop waits for the others to leave it."""


@dataclass(frozen=True)
class Left:
    """Where one rank left the loop."""

    began: int
    """The step that this session continued from; 0 for the initial state."""
    entered: int
    committed: int | None
    """The last step committed in this session."""
    saved: int
    """The last step of this session that a save was begun for, or ``began``."""
    finished: bool = False
    """Whether ``until`` was reached."""
    stopped: bool = False
    """Whether the ranks have agreed to stop: the request for it says what is saved."""
    inexact: str = ""
    """Why the last commit cannot be saved exactly; "" if it can, or is saved."""

    @property
    def is_unsaved(self) -> bool:
        """Whether the last commit is not saved yet."""
        return self.committed is not None and self.committed > self.saved


@dataclass(frozen=True)
class Verdict:
    """What every rank does: ``save`` the last commit, and raise ``error`` after that."""

    save: bool = False
    error: HoldfastError | None = None


def verdict(left: Mapping[int, Left], newest: CheckpointRef | None, *, alone: bool) -> Verdict:
    """What follows from where the ranks left the loop. Pure, and equal on all ranks but for ``newest``.

    Args:
        left: where each rank left, by rank.
        newest: the newest checkpoint of the run, for the message.
        alone: whether this is the only process. After a stop, several cannot begin a save that none of them agreed on.
    """
    if any(one.stopped for one in left.values()):
        return Verdict(save=alone and all(one.is_unsaved and not one.inexact for one in left.values()))
    first_rank, first = min(left.items())
    for rank, one in sorted(left.items()):
        if (one.committed, one.saved) != (first.committed, first.saved):
            found = {first_rank: _place(first), rank: _place(one)}
            return Verdict(error=RanksDisagree("where the loop was left", found=found))
    last = max(one.entered for one in left.values())
    if first.committed is None:
        # A loop that is left in its first step has trained nothing that counts, unless that step was the last one.
        lost = last - first.began > (0 if any(one.finished for one in left.values()) else 1)
        return Verdict(error=StepsNotCommitted(first.began + 1, last) if lost else None)
    if not first.is_unsaved:
        return Verdict(error=_uncommitted_end(left))
    reasons = {rank: one.inexact for rank, one in sorted(left.items()) if one.inexact}
    if reasons:
        rank, reason = next(iter(reasons.items()))
        where = f"process {rank}: " if len(left) > 1 else ""
        return Verdict(error=StepsNotSaved(first.saved + 1, first.committed, reason=f"{where}{reason}", newest=newest))
    return Verdict(save=True, error=_uncommitted_end(left))


def exchange(coordination: Coordination, own: Left) -> dict[int, Left]:
    """Where every rank left the loop. A rank that was stopped does not wait for the others.

    Raises:
        PeerLost: a rank did not leave the loop within LEAVE_SECONDS.
    """
    if coordination.process_count == 1:
        return {0: own}
    ballot = Ballot(coordination, "session/leaving")
    ballot.cast(payload=codec.encode(own).decode())
    if own.stopped:
        return {coordination.process_index: own}
    votes = ballot.gather("all processes to leave the loop", deadline=time.monotonic() + LEAVE_SECONDS)
    return {vote.rank: codec.decode(Left, vote.payload) for vote in votes}


def _uncommitted_end(left: Mapping[int, Left]) -> HoldfastError | None:
    """The last step of training must be committed; a loop that is left early may be left in mid-step."""
    for one in left.values():
        if one.finished and one.committed is not None and one.committed < one.entered:
            return StepsNotCommitted(one.committed + 1, one.entered)
    return None


def _place(one: Left) -> str:
    committed = "no step" if one.committed is None else f"step {one.committed}"
    return f"{committed} committed and step {one.saved} saved"
