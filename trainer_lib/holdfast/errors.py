"""Every exception that Holdfast raises on purpose, with what a program needs to act on it as attributes.

::

    HoldfastError                       exit_code: how a trainer that ends by it exits
    ├── StorageError                    84  path, errno
    │   ├── StorageUnusable             84  missing, not writable, not shared: found before the first step
    │   ├── NotFinished                 84  found: what was to be sealed is no complete checkpoint
    │   └── SaveError                   84  attempt, step, rank
    │       └── SaveTimeout             84  as SaveError; ``rank`` is one that did not answer
    ├── RequestFailed                   84  outcome, reason
    ├── RestoreError                    84
    │   ├── DamagedCheckpoint           84  folder, reason
    │   ├── NoValidCheckpoint           85  rejected
    │   └── StructureMismatch           84  leaf, expected, found, remedy, others
    ├── UnsupportedLeaf                 84  leaf, found                        also a TypeError
    ├── ConfigurationError              64                                     also a ValueError
    ├── RestoreForgotten                64  folder, newest
    ├── StepsNotCommitted               64  first, last
    ├── StepsNotSaved                   64  first, last, reason, newest
    ├── RanksDisagree                   64  subject, found
    ├── OwnershipError                  83
    │   ├── ForeignRun                  86  owner, recorded
    │   └── Superseded                  83  attempt, found
    └── PeerLost                        87  waiting_for, limit_seconds, missing
        ├── PeerLeft                    87  another rank reports that it ends
        ├── CoordinationLost            87  the coordination service is gone
        └── WrongWorld                  87  expected, found: the coordinator serves another job

The numbers are exit codes (``holdfast_contract.exits``). Every error survives pickling and copying with its attributes.
``remat.DoesNotFit`` alone is not here: ``holdfast.remat`` depends on nothing else of this library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import CheckpointRef, Owner, Rejection


class HoldfastError(Exception):
    """Root of the tree."""

    exit_code: ClassVar[ExitCode] = ExitCode.STORAGE

    def __reduce__(self) -> tuple[Any, ...]:
        """Without calling ``__init__`` again: what it is given is not what ``args`` holds."""
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


class StorageError(HoldfastError):
    """Storage did not do what it was asked. ``errno`` is 0 where no system call failed."""

    def __init__(self, message: str, *, path: Path, errno: int = 0) -> None:
        self.path, self.errno = path, errno
        detail = f" ({os.strerror(errno)})" if errno else ""
        super().__init__(f"{path}: {message}{detail}")


class StorageUnusable(StorageError):
    """The run's folder cannot be used at all; found by a probe before the first step."""


class NotFinished(StorageError):
    """What was to be sealed is not there, or no complete checkpoint."""

    def __init__(self, folder: Path, *, found: str) -> None:
        self.found = found
        super().__init__(f"cannot be sealed: {found}", path=folder)


class SaveError(StorageError):
    """A save that is not committed, on any rank. Checkpoints that were committed before it are untouched.

    ``rank`` is the process whose part failed first, ``path`` and ``errno`` are what it met.
    """

    def __init__(self, message: str, *, attempt: int, step: int, rank: int, path: Path, errno: int = 0) -> None:
        self.attempt, self.step, self.rank = attempt, step, rank
        where = f"save of step {step} in attempt {attempt} failed in process {rank}: {message}"
        super().__init__(where, path=path, errno=errno)


class SaveTimeout(SaveError):
    """A save that was not committed within its limit, because a rank's storage hangs or a rank is gone."""


class RequestFailed(HoldfastError):
    """A save that the program asked for with ``request_save`` did not lead to a checkpoint. Training goes on."""

    def __init__(self, outcome: str, reason: str) -> None:
        self.outcome, self.reason = outcome, reason
        super().__init__(f"the save that was asked for is {outcome}: {reason}")


class RestoreError(HoldfastError):
    """Nothing was restored."""


class DamagedCheckpoint(RestoreError):
    """The one checkpoint that was asked for may not be used. No other was tried."""

    def __init__(self, folder: Path, *, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(f"{folder}: may not be restored: {reason}")


class NoValidCheckpoint(RestoreError):
    """Candidates exist and every one was refused. Starting from scratch over them would hide the loss."""

    exit_code: ClassVar[ExitCode] = ExitCode.NO_VALID_CHECKPOINT

    def __init__(self, folder: Path, rejected: Sequence[Rejection]) -> None:
        self.folder, self.rejected = folder, tuple(rejected)
        lines = "".join(f"\n  attempt {r.attempt}, step {r.step}: {r.reason}" for r in rejected)
        super().__init__(
            f"{folder}: {len(self.rejected)} checkpoint(s) exist and none may be restored:{lines}\n"
            "Repair storage, or choose another run name to start from scratch on purpose."
        )


class StructureMismatch(RestoreError):
    """The checkpoint is sound, but the state to fill has another structure. ``others``: further leaves, one a line."""

    _SHOWN: ClassVar[int] = 20

    def __init__(self, leaf: str, *, expected: str, found: str, remedy: str, others: Sequence[str] = ()) -> None:
        self.leaf, self.expected, self.found, self.remedy, self.others = leaf, expected, found, remedy, tuple(others)
        lines = [f"{leaf}: the program expects {expected}, the checkpoint has {found}; {remedy}"]
        if others:
            lines += [f"{len(others)} more leaves differ:", *(f"  {line}" for line in others[: self._SHOWN])]
        if len(others) > self._SHOWN:
            lines.append(f"  and {len(others) - self._SHOWN} more")
        super().__init__("\n".join(lines))


class UnsupportedLeaf(HoldfastError, TypeError):
    """A leaf of the state cannot be stored. Known on every rank before anything is written."""

    def __init__(self, leaf: str, *, found: str) -> None:
        self.leaf, self.found = leaf, found
        super().__init__(
            f"{leaf or 'state'}: found {found}, allowed: jax arrays, typed PRNG keys, numpy arrays and numbers, "
            "Python bool, int and float, each under a name of its own"
        )


class ConfigurationError(HoldfastError, ValueError):
    """An argument or an environment variable that cannot work; the text names it, what was found, what is allowed."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class RestoreForgotten(HoldfastError):
    """The run has checkpoints, nothing was restored, and training would begin from the initial state."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, folder: Path, *, newest: CheckpointRef, remedy: str) -> None:
        self.folder, self.newest = folder, newest
        super().__init__(
            f"{folder}: holds checkpoints, the newest of attempt {newest.attempt}, step {newest.step}, and none was "
            f"restored; {remedy}"
        )


class StepsNotCommitted(HoldfastError):
    """The program ran these steps and ended without ``commit``: nothing of them can be saved."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        super().__init__(
            f"{_steps(first, last)} ran without a commit, so nothing of them is saved; call "
            "`run.commit(step, state)` at the end of each step"
        )


class StepsNotSaved(HoldfastError):
    """The loop was left early, and the last committed state cannot be saved exactly any more."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, first: int, last: int, *, reason: str, newest: CheckpointRef | None) -> None:
        self.first, self.last, self.reason, self.newest = first, last, reason, newest
        there = f"that of attempt {newest.attempt}, step {newest.step}" if newest else "none"
        super().__init__(
            f"{_steps(first, last)}: committed and not saved when the loop was left, and step {last} cannot be saved "
            f"exactly any more: {reason}. Newest checkpoint: {there}. Leave the loop right after `commit`, or pass "
            "`save=True` to the last one"
        )


class RanksDisagree(HoldfastError):
    """Two ranks of one training did different things, so that nothing can be saved together.

    ``found``: what each of the two ranks says, by rank.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, subject: str, *, found: Mapping[int, str]) -> None:
        self.subject, self.found = subject, dict(found)
        said = ", ".join(f"{what} on process {rank}" for rank, what in self.found.items())
        super().__init__(f"{subject}: found {said}, allowed: the same on every process")


class OwnershipError(HoldfastError):
    """The run's folder is not, or no longer, this process's to write into."""

    exit_code: ClassVar[ExitCode] = ExitCode.SUPERSEDED


class ForeignRun(OwnershipError):
    """The run's owner record names another job and no take-over was granted."""

    exit_code: ClassVar[ExitCode] = ExitCode.FOREIGN_RUN

    def __init__(self, folder: Path, *, owner: Owner, recorded: Owner) -> None:
        self.folder, self.owner, self.recorded = folder, owner, recorded
        super().__init__(
            f"{folder}: owned by {_named(recorded)} since attempt {recorded.attempt}, this is {_named(owner)}; "
            "choose another run name, or take the run over once that job has ended"
        )


class Superseded(OwnershipError):
    """A newer incarnation of the job exists, or another process already holds this attempt."""

    def __init__(self, folder: Path, *, attempt: int, found: str) -> None:
        self.folder, self.attempt, self.found = folder, attempt, found
        super().__init__(f"{folder}: attempt {attempt} may not write any more: {found}")


class PeerLost(HoldfastError):
    """Another rank did not answer within a named deadline. The culprit is elsewhere."""

    exit_code: ClassVar[ExitCode] = ExitCode.PEER_LOST

    def __init__(self, waiting_for: str, *, limit_seconds: float, missing: Sequence[int] = ()) -> None:
        self.waiting_for, self.limit_seconds, self.missing = waiting_for, limit_seconds, tuple(missing)
        who = f"; no word from process(es) {list(self.missing)}" if self.missing else ""
        super().__init__(f"gave up waiting for {waiting_for} after {limit_seconds:g} s{who}")


class PeerLeft(PeerLost):
    """Another rank reports that it ends."""

    def __init__(self, message: str) -> None:
        HoldfastError.__init__(self, message)
        self.waiting_for, self.limit_seconds, self.missing = "another process", 0.0, ()


class CoordinationLost(PeerLost):
    """The coordination service cannot be reached or ended the call: the coordinator's process, or a peer, is gone."""

    def __init__(self, doing: str, cause: str) -> None:
        HoldfastError.__init__(self, f"{doing}: {cause}")
        self.waiting_for, self.limit_seconds, self.missing = doing, 0.0, ()


class WrongWorld(PeerLost):
    """The coordinator that this process has joined serves another job, run or attempt: two share its address."""

    def __init__(self, *, expected: str, found: str) -> None:
        HoldfastError.__init__(
            self, f"this process is part of {expected}, but the coordinator that it has joined serves {found}"
        )
        self.expected, self.found = expected, found
        self.waiting_for, self.limit_seconds, self.missing = expected, 0.0, ()


def _rebuilt(kind: type[HoldfastError], args: tuple[Any, ...], attributes: dict[str, Any]) -> HoldfastError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _named(owner: Owner) -> str:
    name = f"{owner.namespace}/{owner.name}".strip("/") or "a program outside a cluster"
    return f"{name} (UID {owner.job_uid or 'none'})"
