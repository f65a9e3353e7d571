"""The result of a restore."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.state.changes import NOTHING_CHANGED, Changed
from holdfast.state.structure import PyTree
from holdfast.store.format.data_files import data_file
from holdfast_contract.manifest import CheckpointRef, Manifest, Rejection


@dataclass(frozen=True)
class Restored:
    """What all ranks agreed on. ``data`` is this rank's data position; None if none was saved for this rank."""

    state: PyTree
    data: bytes | None
    ref: CheckpointRef
    manifest: Manifest
    rejected: tuple[Rejection, ...]
    timings: dict[str, float] = field(default_factory=dict)
    """Stage to seconds on this rank."""
    changed: Changed = NOTHING_CHANGED
    """Leaves that differ as allowed; the new ones are in ``state`` as the caller described them."""
    folder: Path = Path()
    """The checkpoint's own folder."""

    def positions(self) -> tuple[bytes | None, ...]:
        """The data position of every process that took part in the save, by its number then. Raises OSError."""
        listed = {entry.path for entry in self.manifest.files}
        names = [data_file(rank) for rank in range(self.manifest.process_count)]
        return tuple((self.folder / name).read_bytes() if name in listed else None for name in names)
