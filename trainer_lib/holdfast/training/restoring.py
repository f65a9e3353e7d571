"""What every way to restore has in common."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import ConfigurationError
from holdfast.state import data_position
from holdfast.training.arguments import as_step
from holdfast_contract.manifest import CheckpointRef

if TYPE_CHECKING:
    from holdfast.state.initial import Initial
    from holdfast.store import Allowed, CheckpointChoice, Restored, Store, Unpinned
    from holdfast.store.read.candidates import Metric
    from holdfast.training.beginning import Beginning

    PyTree = Any

log = logging.getLogger("holdfast")


@dataclass(frozen=True)
class RestoreRequest:
    """Which checkpoint to restore, and which leaves may differ. ``pin``: nothing newer may be restored."""

    pin: CheckpointRef | Unpinned | None
    allowed: Allowed
    choice: CheckpointChoice


def restore_request(
    pin: CheckpointRef | Literal["any"] | None,
    new_leaves: Sequence[str],
    dropped_leaves: Sequence[str],
    *,
    step: int | None = None,
    best: Metric | None = None,
    fresh: bool = False,
) -> RestoreRequest:
    """The arguments of a ``restore`` as the store takes them; ``fresh``: nothing is restored. Raises TypeError, ValueError."""
    from holdfast.store import UNPINNED, Allowed, CheckpointChoice

    if fresh and (step is not None or best is not None):
        raise ConfigurationError(f"step, best: found {step!r}, {best!r}, allowed: neither, because `fresh` is set")
    for given in (new_leaves, dropped_leaves):
        if isinstance(given, str):
            raise TypeError(f"new_leaves, dropped_leaves: found {given!r}, allowed: a list of paths")
    allowed = Allowed(tuple(new_leaves), tuple(dropped_leaves))
    if fresh:
        return RestoreRequest(None, allowed, CheckpointChoice())
    wished = None if step is None else as_step("step", step)
    return RestoreRequest(UNPINNED if pin == "any" else pin, allowed, CheckpointChoice(wished, best))


def begin_or_continue(
    store: Store, beginning: Beginning, initial: Initial, data: Any, request: RestoreRequest
) -> tuple[PyTree, Restored | None]:
    """The state to train on from, and the checkpoint it comes from if there is one; ``data`` is put where it was then.

    What the first save needs is prepared in the background meanwhile. Raises as ``Session.restore``.
    """
    from holdfast.state import nnx

    with beginning.restoring():
        restored = store.restore(request.pin, initial.abstract, request.allowed, request.choice)
        if restored is None:
            state = initial.build()
            beginning.start_over()
        else:
            reinstate(data, restored, beginning.process_count)
            state = initial.fill(restored.state, restored.changed.new)
        beginning.asked_for(initial.abstract, request.allowed)
        store.prepare(nnx.arrays_of(state))
    return state, restored


def reinstate(data: Any, restored: Restored, process_count: int) -> None:
    """Put the iterator where the checkpoint says, by the rule of ``holdfast.state.data_position``; log what differs as allowed.

    Raises:
        RestoreError: the position does not fit the iterator or the number of processes.
    """
    name = f"checkpoint of attempt {restored.ref.attempt}, step {restored.ref.step}"
    if restored.manifest.process_count == process_count:
        data_position.reinstate(data, restored.data, checkpoint=name)
    else:
        stored = restored.positions()
        data_position.reinstate_elsewhere(data, stored, process_count=process_count, checkpoint=name)
    for paths, fate in ((restored.changed.new, "begin anew"), (restored.changed.dropped, "were left behind")):
        if paths:
            log.warning("%s: %d leaves %s, as allowed: %s", name, len(paths), fate, ", ".join(sorted(paths)))
