"""The two ways to write a snapshot as an Orbax checkpoint: by ourselves, past the page cache, or by Orbax."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import xxhash

from holdfast.store.format import fs, orbax_records
from holdfast.store.format.orbax_records import INDEX_FILE, NODES_FOLDER, SHARDING_FILE, TREE_FILE
from holdfast.store.write import direct_io
from holdfast.store.write.preparation import Prepared
from holdfast.store.write.snapshot import Image, Snapshot, TreeCopy
from holdfast_contract.manifest import FileEntry


class Writer(Protocol):
    """Writes into the folder of a checkpoint, which is there, on every process. Blocks. Raises OSError."""

    hash_seconds: float
    """How long digests kept the writing waiting so far."""

    @property
    def agreement(self) -> str:
        """Must be equal on all processes, or they would not write one checkpoint."""

    def write_part(self, folder: Path) -> tuple[FileEntry, ...]:
        """Write what this process holds; files whose digest is known already, by path below ``folder``."""

    def join_parts(self, folder: Path) -> None:
        """On process 0, when all parts are written: make one checkpoint of them."""


def writer_for(snapshot: Snapshot, prepared: Prepared, *, process: int, processes: int, identity: str) -> Writer:
    """The writer of a snapshot. ``identity`` differs between saves and is equal on all processes."""
    if isinstance(snapshot, TreeCopy):
        return OrbaxWriter(snapshot)
    return DirectWriter(snapshot, prepared, process, processes, identity)


@dataclass
class OrbaxWriter:
    """By Orbax."""

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
    processes: int
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
        files = [self._data_path(process) for process in range(self.processes)]
        encoded = self.prepared.index.encode(files, nodes_path, commit_nanoseconds=time.time_ns())
        fs.make_folder(folder / NODES_FOLDER)
        fs.write_file(folder / nodes_path, encoded.nodes)
        fs.write_file(folder / INDEX_FILE, encoded.manifest)
        fs.write_file(folder / SHARDING_FILE, self.prepared.shardings)
        fs.write_file(folder / TREE_FILE, self.prepared.tree_metadata)

    def _data_path(self, process: int) -> str:
        return f"{orbax_records.part_folder(process)}/{NODES_FOLDER}/{_hexadecimal(f'{self.identity} {process}')}"


def _hexadecimal(text: str) -> str:
    """A file name like OCDBT's own, 32 hexadecimal digits, that no other save of the run has."""
    return xxhash.xxh3_128_hexdigest(text.encode())
