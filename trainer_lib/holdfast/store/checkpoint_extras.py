"""What a save stores besides the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class CheckpointExtras:
    """What to store besides the state.

    ``data``: this rank's data position. ``metrics``: values that ``float()`` accepts. ``pinned``: retention never deletes
    the checkpoint. ``metadata``: the program's notes as JSON.
    """

    data: bytes | None = None
    metrics: Mapping[str, object] | None = None
    pinned: bool = False
    metadata: bytes | None = None
