"""How training begins: after a restored checkpoint, from an initial state, or not at all because ``restore`` was forgotten."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import ConfigurationError, RestoreForgotten, StorageUnusable
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import Found, RunFolder

if TYPE_CHECKING:
    from holdfast.distributed.coordination import Coordination
    from holdfast.state.changes import Allowed
    from holdfast.training.config import SessionConfig

FORGOTTEN_IN_SESSION: Final = (
    "call `run.restore(init_state)` before the first step to continue, or open `session(fresh=True)` to start over"
)
FORGOTTEN_IN_CHECKPOINTER: Final = (
    "call `checkpointer.restore()` before the first save to continue, or make `Checkpointer(fresh=True)` to start over"
)

log = logging.getLogger("holdfast")


class Beginning:
    """Whether training may begin: once something was restored, or nothing could be, or starting over was asked for.

    Args:
        config: the run's folder, what may be restored from it, and ``fresh``.
        attempt: the present attempt.
        coordination: which of how many processes this is; process 0 notes on storage that an attempt begins anew.
        remedy: what the program can do, for the message.
    """

    def __init__(self, config: SessionConfig, attempt: int, coordination: Coordination, *, remedy: str) -> None:
        self._config, self._attempt, self._remedy = config, attempt, remedy
        self._leads = coordination.process_index == 0
        self.process_count = coordination.process_count
        self._folder = RunFolder(config.folder)
        self._settled = False
        self._asked: tuple[Any, Allowed] | None = None
        self._rehearsed: object = None  # the outline of the last state that a restart could restore

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Around a restore, which settles the question unless it raises."""
        self._settled = True
        try:
            yield
        except BaseException:
            self._settled = False
            raise

    def asked_for(self, state: Any, allowed: Allowed) -> None:
        """What ``restore`` was asked for: the abstract state, and the leaves that may differ."""
        self._asked = (state, allowed)

    def rehearse(self, committed: Any) -> None:
        """At the first commit and before each save: could a restart of this program restore what is committed?

        Args:
            committed: the arrays of the state. Their numbers are not read.

        Raises:
            UnsupportedLeaf: a leaf cannot be stored.
            ConfigurationError: the state differs from the one that ``restore`` was asked for; every leaf is named.
        """
        if self._asked is None:
            return
        from holdfast.state.rehearsal import outline_of, refusal
        from holdfast.state.structure import structure_of

        outline = outline_of(committed)
        if outline == self._rehearsed:
            return
        asked, allowed = self._asked
        if text := refusal(asked, committed, allowed):
            structure_of(committed)  # a leaf that cannot be stored has an error of its own
            raise ConfigurationError(text)
        self._rehearsed = outline

    def require(self) -> None:
        """Training goes on from here.

        Raises:
            RestoreForgotten: checkpoints could have been restored, and none was.
            StorageUnusable: whether there are any cannot be found out.
        """
        if self._settled:
            return
        if self._config.fresh or self._config.pin is None:
            self.start_over()
        elif (newest := self._restorable()) is not None:
            raise RestoreForgotten(self._folder.root, newest=newest, remedy=self._remedy)
        self._settled = True

    def start_over(self) -> None:
        """Training begins from the initial state: the last checkpoints before it, if there are any, stay on storage.

        Raises:
            StorageUnusable: that cannot be noted, and so retention would delete them.
        """
        from holdfast.store import lineage

        try:
            newest = next((entry.ref for entry in self._folder.walk() if isinstance(entry, Found)), None)
            if newest is not None and self._leads:
                lineage.note(self._folder, self._attempt, newest)
        except OSError as error:
            raise _unusable(self._folder, error) from error
        if newest is not None:
            log.warning(
                "attempt %d starts over%s: the checkpoints up to attempt %d, step %d are left behind, the last ones stay",
                self._attempt,
                " (fresh=True)" if self._config.fresh else "",
                newest.attempt,
                newest.step,
            )

    def _restorable(self) -> CheckpointRef | None:
        """The newest checkpoint that ``restore`` would look at, valid or not."""
        from holdfast.store.read.candidates import NEWEST, Candidates
        from holdfast.store.store_settings import UNPINNED, StoreSettings

        settings = StoreSettings(poison_after=self._config.poison_after)
        pin = self._config.pin
        candidates = Candidates(self._folder, self._attempt, settings)
        try:
            entries = candidates.in_order(pin if isinstance(pin, CheckpointRef) else UNPINNED, NEWEST)
            entry = next(entries, None)
        except OSError as error:
            raise _unusable(self._folder, error) from error
        if entry is None:
            return None
        return entry.ref if isinstance(entry, Found) else CheckpointRef(entry.attempt, entry.step)


def _unusable(folder: RunFolder, error: OSError) -> StorageUnusable:
    return StorageUnusable("its checkpoints cannot be listed", path=folder.root, errno=error.errno or 0)
