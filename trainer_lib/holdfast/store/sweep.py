"""Deleting the checkpoints that retention does not keep."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Final

from holdfast.policies.keep_rules import KeepRule, StoredCheckpoint, superfluous
from holdfast.store.claim import RunClaim
from holdfast.store.format import fs
from holdfast.store.handle import logger
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import Found

ALWAYS_KEPT: Final = 2
"""The newest checkpoints, whose files all have the right size, that are never deleted, whatever the rule."""


def apply_retention(
    claim: RunClaim, rule: KeepRule, *, protected: Iterable[CheckpointRef], damaged: Collection[CheckpointRef] = ()
) -> tuple[CheckpointRef, ...]:
    """Delete the checkpoints of this and older attempts that nothing keeps. Rank 0 only.

    Only checkpoints with a readable manifest of this run are deleted. One that cannot be deleted is logged and left.

    Args:
        claim: the run and the attempt that deletes.
        rule: which checkpoints to keep.
        protected: checkpoints to keep whatever the rule says.
        damaged: checkpoints known to be invalid; they do not count among the newest ones that always stay.

    Returns:
        What was deleted, oldest first.

    Raises:
        Superseded: a newer attempt has begun; nothing was deleted.
        OSError: the run's folder cannot be read.
    """
    claim.require_current()
    found = [f for f in claim.folder.survey().found if f.ref.attempt <= claim.attempt]
    stored = [StoredCheckpoint(f.ref, f.manifest.metrics, f.manifest.pinned, f.manifest.elapsed_seconds) for f in found]
    whole = (f.ref for f in found if f.ref not in damaged and _has_all_sizes(f))
    newest_whole = [ref for ref, _ in zip(whole, range(ALWAYS_KEPT), strict=False)]
    removed = []
    for ref in superfluous(stored, rule, protected={*protected, *newest_whole}):
        try:
            fs.discard_folder(claim.folder.step_folder(ref.attempt, ref.step))
        except OSError as error:
            logger.warning("attempt %d, step %d could not be deleted: %s", ref.attempt, ref.step, error)
        else:
            removed.append(ref)
    return tuple(removed)


def _has_all_sizes(found: Found) -> bool:
    try:
        return all(os.lstat(found.folder / entry.path).st_size == entry.size for entry in found.manifest.files)
    except OSError:
        return False
