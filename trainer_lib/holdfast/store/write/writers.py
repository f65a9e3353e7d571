"""The two writers of a snapshot as an Orbax checkpoint: Holdfast's, past the page cache, and Orbax's."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import xxhash

from holdfast.store.format import fs, orbax_records
from holdfast.store.format.orbax_records import INDEX_FILE, NODES_FOLDER, SHARDING_FILE, TREE_FILE
from holdfast.store.write import direct_io
from holdfast.store.write.save_preparation import Prepared
from holdfast.store.write.snapshot import Image, Snapshot, TreeCopy
from holdfast_contract.manifest import FileEntry


class Writer(Protocol):
    """Writes into the folder of a checkpoint, which exists, on every process. Blocks. Raises OSError."""

    hash_seconds: float
    """How long writing has waited for digests so far."""

    @property
    def agreement(self) -> str:
        """Equal on all processes if, and only if, their parts make one checkpoint."""

    def write_part(self, folder: Path) -> tuple[FileEntry, ...]:
        """Write what this process holds. Returns the files whose digests are known already, with paths below ``folder``."""

    def join_parts(self, folder: Path) -> None:
        """Make one checkpoint of all parts. Process 0 calls it once every process has written its part."""


def writer_for(snapshot: Snapshot, prepared: Prepared, *, process: int, process_count: int, identity: str) -> Writer:
    """The writer of a snapshot.

    Args:
        snapshot: what this process writes; a ``TreeCopy`` goes to Orbax.
        prepared: index and metadata of the state, for the direct writer.
        process: index of this process.
        process_count: number of processes that write.
        identity: differs between saves and is equal on all processes; file names are derived from it.
    """
    if isinstance(snapshot, TreeCopy):
        return OrbaxWriter(snapshot)
    return DirectWriter(snapshot, prepared, process, process_count, identity)


@dataclass
class OrbaxWriter:
    """Orbax's own writer."""

    snapshot: TreeCopy
    hash_seconds: float = field(default=0.0, init=False)
    agreement: str = field(default="orbax", init=False)

    def write_part(self, folder: Path) -> tuple[FileEntry, ...]:
        """See Writer."""
        from holdfast.store.format import orbax_io

        orbax_io.write_part(folder, self.snapshot.state())
        return ()

    def join_parts(self, folder: Path) -> None:
        """See Writer."""
        from holdfast.store.format import orbax_io

        orbax_io.merge_parts(folder)


@dataclass
class DirectWriter:
    """One file of raw chunks per process and one index over all of them."""

    snapshot: Image
    prepared: Prepared
    process: int
    process_count: int
    identity: str
    hash_seconds: float = field(default=0.0, init=False)

    @property
    def agreement(self) -> str:
        """See Writer."""
        return f"direct {self.prepared.index.digest}"

    def write_part(self, folder: Path) -> tuple[FileEntry, ...]:
        """See Writer."""
        fs.write_file(folder / orbax_records.array_metadata_file(self.process), self.prepared.array_metadata)
        nbytes = self.snapshot.layout.file_bytes
        if not nbytes:
            return ()
        path = self._data_path(self.process)
        for parent in reversed(Path(path).parents[:-1]):
            fs.make_folder(folder / parent)
        written = direct_io.write_file(folder / path, self.snapshot.blocks(), nbytes)
        self.hash_seconds += written.hash_seconds
        return (FileEntry(path, written.nbytes, written.digest),)

    def join_parts(self, folder: Path) -> None:
        """See Writer."""
        nodes_path = f"{NODES_FOLDER}/{_hexadecimal(f'{self.identity} nodes')}"
        files = [self._data_path(process) for process in range(self.process_count)]
        encoded = self.prepared.index.encode(files, nodes_path, commit_nanoseconds=time.time_ns())
        fs.make_folder(folder / NODES_FOLDER)
        fs.write_file(folder / nodes_path, encoded.nodes)
        fs.write_file(folder / INDEX_FILE, encoded.manifest)
        fs.write_file(folder / SHARDING_FILE, self.prepared.shardings)
        fs.write_file(folder / TREE_FILE, self.prepared.tree_metadata)

    def _data_path(self, process: int) -> str:
        return f"{orbax_records.part_folder(process)}/{NODES_FOLDER}/{_hexadecimal(f'{self.identity} {process}')}"


def _hexadecimal(text: str) -> str:
    """A file name of 32 hexadecimal digits, like OCDBT's own; no other save of the run has it."""
    return xxhash.xxh3_128_hexdigest(text.encode())
