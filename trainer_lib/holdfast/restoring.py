"""What every way to restore has in common."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from holdfast import data as positions
from holdfast_contract.manifest import CheckpointRef

if TYPE_CHECKING:
    from holdfast.store import Allowed, Restored, Unpinned

log = logging.getLogger("holdfast")


def allowed_changes(new_leaves: Sequence[str], dropped_leaves: Sequence[str]) -> Allowed:
    """The two arguments as the store takes them. Raises TypeError."""
    from holdfast.store import Allowed

    for given in (new_leaves, dropped_leaves):
        if isinstance(given, str):
            raise TypeError(f"new_leaves, dropped_leaves: found {given!r}, allowed: a list of paths")
    return Allowed(tuple(new_leaves), tuple(dropped_leaves))


def pin_of(pin: CheckpointRef | Literal["any"] | None) -> CheckpointRef | Unpinned | None:
    """The pin as the store takes it."""
    from holdfast.store import UNPINNED

    return UNPINNED if pin == "any" else pin


def reinstate(data: Any, restored: Restored, process_count: int) -> None:
    """Put the iterator where the checkpoint says, by the rule of ``holdfast.data``; log what differs as allowed.

    Raises:
        RestoreError: the position does not fit the iterator or the number of processes.
    """
    name = f"checkpoint of attempt {restored.ref.attempt}, step {restored.ref.step}"
    if restored.manifest.process_count == process_count:
        positions.reinstate(data, restored.data, checkpoint=name)
    else:
        stored = restored.positions()
        positions.reinstate_elsewhere(data, stored, process_count=process_count, checkpoint=name)
    for paths, fate in ((restored.changed.new, "begin anew"), (restored.changed.dropped, "were left behind")):
        if paths:
            log.warning("%s: %d leaves %s, as allowed: %s", name, len(paths), fate, ", ".join(sorted(paths)))
