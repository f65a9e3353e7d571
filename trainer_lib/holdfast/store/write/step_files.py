"""The files that one rank writes for a save: written, made durable, and described for the manifest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from holdfast.state.structure import Structure
from holdfast.store.format import digests, fs
from holdfast.store.format.data_files import data_file
from holdfast.store.format.orbax_records import part_folder
from holdfast.store.store_settings import StoreSettings
from holdfast.store.write import readback
from holdfast.store.write.snapshot import Snapshot
from holdfast.store.write.writers import Writer
from holdfast_contract.keys import STATE_FOLDER
from holdfast_contract.manifest import FileEntry

_NOTHING_KNOWN: Final[Mapping[str, FileEntry]] = {}


@dataclass(frozen=True)
class RankPart:
    """What one rank writes in a save. ``data``: its data position."""

    snapshot: Snapshot
    writer: Writer
    structure: Structure
    data: bytes | None


@dataclass
class StepFiles:
    """The files of one step's folder. ``timings``: stage to seconds, summed."""

    folder: Path
    settings: StoreSettings
    timings: dict[str, float] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Paths of all present files, relative to the folder."""
        return [path.relative_to(self.folder).as_posix() for path in fs.walk_files(self.folder)]

    def write_part(self, work: RankPart, rank: int) -> tuple[FileEntry, ...]:
        """Write this rank's part, make it durable and describe it. Raises OSError, ReadBackError."""
        with self.timed("write_seconds"):
            hashed = work.writer.write_part(self.folder / STATE_FOLDER)
            if work.data is not None:
                fs.write_file(self.folder / data_file(rank), work.data)
        self._note_hashing(work.writer.hash_seconds)
        known = {f"{STATE_FOLDER}/{e.path}": replace(e, path=f"{STATE_FOLDER}/{e.path}") for e in hashed}
        mine = [path for path in self.names() if digests.writer_of(path) == rank]
        if rank == 0:
            mine = [path for path in mine if _is_of_a_process(path)]
        files = self.make_durable(mine, known)
        if self.settings.check_saves:
            with self.timed("check_seconds"):
                part = [entry for entry in files if entry.path.startswith(f"{STATE_FOLDER}/{part_folder(rank)}/")]
                readback.compare_part(self.folder, work.snapshot, part, work.structure, rank)
        return files

    def make_durable(
        self, paths: Sequence[str], known: Mapping[str, FileEntry] = _NOTHING_KNOWN
    ) -> tuple[FileEntry, ...]:
        """Sync files and describe them; those in ``known`` are not read again. Raises OSError."""
        with self.timed("sync_seconds"):
            for path in paths:
                fs.sync_file(self.folder / path)
        with self.timed("digest_seconds"):
            unknown = [path for path in paths if path not in known]
            read = digests.describe_files(self.folder, unknown, threads=self.settings.io_threads)
        return (*(known[path] for path in paths if path in known), *read)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to ``stage``."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.timings[stage] = self.timings.get(stage, 0.0) + time.monotonic() - start

    def _note_hashing(self, seconds: float) -> None:
        """Count the time that writing waited for digests as digest time."""
        self.timings["digest_seconds"] = self.timings.get("digest_seconds", 0.0) + seconds
        self.timings["write_seconds"] -= seconds


def _is_of_a_process(path: str) -> bool:
    """Whether a file is final before the merge: the parts of processes are, rank 0's other files are not."""
    return digests.writer_of(path, default=-1) == 0
