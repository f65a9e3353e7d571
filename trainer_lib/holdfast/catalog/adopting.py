"""Adopting the checkpoints of a run whose folder was renamed: their manifests still name the run as it was called before.

Only manifests are written. Each names the same files with the same digests, so the data stay guarded as before.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.store.format import fs
from holdfast_contract import codec, manifest
from holdfast_contract.keys import MANIFEST_FILE
from holdfast_contract.manifest import CheckpointKey, Manifest, Rejection
from holdfast_contract.runfolder import (
    LINKED_STEP,
    MAX_MANIFEST_BYTES,
    BadManifestError,
    Found,
    RunFolder,
    read_regular_file,
)


@dataclass(frozen=True)
class AdoptedManifest:
    """A manifest as it will be stored: with the run's new name, and with the parent's new digest."""

    key: CheckpointKey
    path: Path
    data: bytes


@dataclass(frozen=True)
class Adoption:
    """What an adoption writes, oldest first. ``refused``: checkpoints that stay as they are, and why.

    ``former`` is the run's name before; "" if there is nothing to adopt.
    """

    run: str
    former: str
    manifests: tuple[AdoptedManifest, ...]
    refused: tuple[Rejection, ...]

    def publish(self) -> None:
        """Replace one manifest after the other, each atomically. One that was cut off is completed by the next. Raises OSError."""
        for adopted in self.manifests:
            fs.publish_file(adopted.path, adopted.data)


def plan_adoption(path: str | os.PathLike[str]) -> Adoption:
    """What would be written so that the run's folder owns all its checkpoints. Nothing is written yet.

    Raises:
        FileNotFoundError: the folder has no checkpoint of a run.
        ValueError: the checkpoints are of several other runs.
        OSError: storage does not answer, or denies access.
    """
    folder = RunFolder(Path(os.path.abspath(path)))
    entries = [_read(folder, entry) for entry in reversed(tuple(folder.walk()))]
    if not entries:
        raise FileNotFoundError(f"{folder.root}: found no checkpoint of a run; allowed: the folder of a run")
    read = [entry for entry in entries if isinstance(entry, Manifest)]
    former = sorted({entry.run for entry in read} - {folder.run})
    if len(former) > 1:
        raise ValueError(f"{folder.root}: found checkpoints of the runs {', '.join(former)}; allowed: of one other run")
    refused = tuple(entry for entry in entries if isinstance(entry, Rejection))
    if not former:
        return Adoption(folder.run, "", (), refused)
    return Adoption(folder.run, former[0], _renamed(folder, read, former[0]), refused)


def _read(folder: RunFolder, entry: Found | Rejection) -> Manifest | Rejection:
    """The manifest, whatever run it names; the refusal if anything else is wrong with it."""
    if isinstance(entry, Found):
        key, problem = entry.ref.key, Rejection(entry.ref.attempt, entry.ref.step, "it changed meanwhile")
    else:
        key, problem = entry.key, entry
    if problem.reason == LINKED_STEP:
        return problem
    try:
        data = read_regular_file(folder.step_folder(*key) / MANIFEST_FILE, MAX_MANIFEST_BYTES)
        read = None if data is None else manifest.from_bytes(data)
    except (BadManifestError, codec.CodecError):
        return problem
    if read is None or CheckpointKey(read.attempt, read.step) != key:
        return problem
    if manifest.to_bytes(read) != data:
        return Rejection(*key, f"{MANIFEST_FILE}: another version of Holdfast wrote it; adopt it with that version")
    return read


def _renamed(folder: RunFolder, read: Sequence[Manifest], former: str) -> tuple[AdoptedManifest, ...]:
    """The manifests that change. ``read`` is oldest first, so a parent's new digest is known before its children's."""
    new_digests: dict[str, str] = {}
    old_digests: dict[str, str] = {}
    changed = []
    for found in read:
        old_parent = old_digests.get(found.parent, found.parent)  # of one adopted before, by an adoption cut off
        old = manifest.to_bytes(dataclasses.replace(found, run=former, parent=old_parent))
        new_parent = new_digests.get(old_parent, old_parent)
        new = manifest.to_bytes(dataclasses.replace(found, run=folder.run, parent=new_parent))
        new_digests[manifest.digest_of(old)] = manifest.digest_of(new)
        old_digests[manifest.digest_of(new)] = manifest.digest_of(old)
        if found.run != folder.run:
            key = CheckpointKey(found.attempt, found.step)
            changed.append(AdoptedManifest(key, folder.step_folder(*key) / MANIFEST_FILE, new))
    return tuple(changed)
