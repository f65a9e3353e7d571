"""Deletions of one attempt: what retention does not keep, what killed writers left, and room for the next save.

Only rank 0 deletes; the store calls these methods there alone. None of them raises for an error of storage: a save that
is affected reports it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from holdfast import errors
from holdfast.policies.keep_rules import KeepEverything, KeepRule
from holdfast.store.claim import RunClaim, sweep_leftovers
from holdfast.store.handle import logger
from holdfast.store.sweep import apply_retention
from holdfast.store.write import space
from holdfast_contract.manifest import CheckpointRef


class Housekeeping:
    """Deletes on behalf of one attempt, one deletion pass at a time."""

    def __init__(self, claim: RunClaim, retention: KeepRule, process_count: int) -> None:
        self._claim, self._retention, self._process_count = claim, retention, process_count
        self._protected: set[CheckpointRef] = set()
        self._damaged: set[CheckpointRef] = set()
        self._running = threading.Lock()

    def protect(self, ref: CheckpointRef) -> None:
        """Never delete this checkpoint in this attempt, whatever retention says."""
        self._protected.add(ref)

    def note_damaged(self, refs: Iterable[CheckpointRef]) -> None:
        """These checkpoints were refused: they do not count among the newest valid ones that always stay."""
        self._damaged.update(refs)

    def apply_retention(self, newest: CheckpointRef | None) -> None:
        """Delete what no rule keeps. ``newest``, the checkpoint that this attempt saved or restored last, always stays."""
        if isinstance(self._retention, KeepEverything):
            return
        protected = {*self._protected, *([newest] if newest else [])}
        with self._running:
            try:
                removed = apply_retention(self._claim, self._retention, protected=protected, damaged=self._damaged)
            except (OSError, errors.HoldfastError, ValueError) as error:
                logger.warning("retention: %s", error)
            else:
                for ref in removed:
                    logger.info("deleted checkpoint of attempt %d, step %d", ref.attempt, ref.step)

    def sweep_leftovers(self) -> None:
        """Delete what killed writers of this and older attempts left behind."""
        with self._running:
            try:
                sweep_leftovers(self._claim)
            except OSError as error:
                logger.warning("leftovers of earlier writers could not be deleted: %s", error)

    def make_room(self, state_bytes: int, newest: CheckpointRef | None) -> str:
        """Make room on storage for the next save, and warn early when room is running out.

        Args:
            state_bytes: what this rank saves; every rank is taken to save as much.
            newest: as for ``apply_retention``.

        Returns:
            What is missing although everything that may be deleted was deleted; "" if the next save fits.
        """
        root = self._claim.folder.root
        try:
            room = self._room(state_bytes)
            if not room.is_getting_short:
                return ""
            logger.warning("%s: storage is getting full: %s", root, room)
            if room.is_short:
                self.apply_retention(newest)
                self.sweep_leftovers()
                room = self._room(state_bytes)
        except OSError as error:  # the save itself reports what is wrong with storage
            logger.debug("the free room on storage is unknown: %s", error)
            return ""
        if not room.is_short:
            return ""
        logger.error("%s: no room for the next checkpoint, and every checkpoint is kept by a rule: %s", root, room)
        return f"{room}, and nothing is left to delete: a rule keeps every checkpoint"

    def _room(self, state_bytes: int) -> space.Room:
        return space.room(self._claim.folder, state_bytes * self._process_count)
