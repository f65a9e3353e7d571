"""Seals: manifests for checkpoints that a plain Orbax ``CheckpointManager`` or ``Checkpointer`` writes.

    manager.save(step, args=...)
    manager.wait_until_finished()
    holdfast.seal(manager.directory)             # after a save
    step = holdfast.newest_sealed(directory)     # before a restore: the newest step without a changed byte

The manifest is in the step's own folder, so the manager's retention deletes it with the step, and Orbax's readers ignore it.
A seal records what was on disk when it was made: a step that was damaged before is sealed with the damage.

This module works on folders and imports neither Orbax nor JAX. One process seals, after every process has written its part.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast import errors
from holdfast.store.format import digests, fs
from holdfast_contract import codec, manifest
from holdfast_contract.keys import MANIFEST_FILE
from holdfast_contract.manifest import CheckpointRef, Manifest, Rejection
from holdfast_contract.runfolder import LINKED_STEP, MAX_MANIFEST_BYTES, BadManifestError, Found, read_regular_file

COMMIT_FILE: Final = "commit_success.txt"
METADATA_FILE: Final = "_CHECKPOINT_METADATA"
"""Orbax 0.12.3 and later write both into a step's folder, the first one when the step is complete."""
SEALED_ATTEMPT: Final = 0
"""The attempt of sealed steps; Holdfast's own attempts count from 1."""
IO_THREADS: Final = 4
TRANSIENT_SECONDS: Final = 60.0
_STEP_NAME: Final = re.compile(r"(?:[A-Za-z][\w.-]*?_)?(?P<step>[0-9]{1,18})", re.ASCII)

log = logging.getLogger("holdfast")


@dataclass(frozen=True)
class SealedFolder:
    """The folder of a manager. Its steps are directly in it: ``<root>/<step>`` or ``<root>/<prefix>_<step>``."""

    root: Path

    def steps(self) -> tuple[tuple[int, Path], ...]:
        """Finished steps, sealed or not, ascending. The folders of unfinished saves and deletions have other names."""
        return tuple((step, folder) for step, folder, is_link in self._named() if not is_link)

    def linked_steps(self) -> tuple[tuple[int, Path], ...]:
        """Symbolic links named like steps that lead to folders, ascending. They are neither sealed nor restored."""
        return tuple((step, folder) for step, folder, is_link in self._named() if is_link)

    def _named(self) -> list[tuple[int, Path, bool]]:
        """(step, path, is a link) of each folder with the name of a step, ascending."""
        found = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                name = _STEP_NAME.fullmatch(entry.name)
                if name and entry.is_dir():
                    found.append((int(name["step"]), Path(entry.path), entry.is_symlink()))
        return sorted(found)

    def walk(self) -> Iterator[Found | Rejection]:
        """Every sealed step or refusal, newest first. A step without a manifest is not sealed and left out."""
        for step, folder, is_link in reversed(self._named()):
            entry = self._refuse_link(step, folder) if is_link else self.look(step, folder)
            if entry is not None:
                yield entry

    def look(self, step: int, folder: Path) -> Found | Rejection | None:
        """The step that the manifest in ``folder`` describes, or its refusal; None without a manifest. Raises OSError."""
        try:
            data = read_regular_file(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES)
            if data is None:
                return None
            read = manifest.from_bytes(data)
        except (BadManifestError, codec.CodecError) as error:
            return Rejection(SEALED_ATTEMPT, step, f"{MANIFEST_FILE}: {error}")
        if (read.run, read.attempt, read.step) != ("", SEALED_ATTEMPT, step):
            found = f"run, attempt, step: found {(read.run, read.attempt, read.step)}"
            return Rejection(SEALED_ATTEMPT, step, f"{MANIFEST_FILE}: {found}, allowed here: {('', 0, step)}")
        return Found(CheckpointRef(SEALED_ATTEMPT, step, manifest.digest_of(data)), folder, read)

    def _refuse_link(self, step: int, folder: Path) -> Rejection | None:
        sealed = os.path.lexists(folder / MANIFEST_FILE)
        return Rejection(SEALED_ATTEMPT, step, LINKED_STEP) if sealed else None

    def folder_of(self, step: int) -> Path:
        """The folder of a step. Raises FileNotFoundError."""
        for number, folder in self.steps():
            if number == step:
                return folder
        if step in dict(self.linked_steps()):
            raise FileNotFoundError(f"{self.root}: step {step}: {LINKED_STEP}")
        raise FileNotFoundError(f"{self.root}: found no finished checkpoint of step {step}")


def seal(
    path: str | os.PathLike[str],
    step: int | None = None,
    *,
    metrics: Mapping[str, float] | None = None,
    process_count: int = 1,
) -> tuple[CheckpointRef, ...]:
    """Seal ``step`` of a manager's folder, or every finished step that is not sealed yet.

    Every file is made durable and hashed before the manifest is published. A step that the manager deletes meanwhile is
    left out, unless it is ``step``. Sealing a sealed step again changes nothing.

    Args:
        path: the manager's folder.
        step: the step to seal; None for all.
        metrics: metrics for the manifest of ``step``, to choose the best later. Values that are not finite are left out.
        process_count: how many processes wrote it, for the manifest.

    Returns:
        What this call has sealed.

    Raises:
        NotFinished: ``step`` does not exist, or its save is not complete.
        OSError: storage did not answer, or is not writable.
        ValueError: there are metrics without a step.
    """
    if metrics and step is None:
        raise ValueError("`step` is required with metrics but not set")
    folder = SealedFolder(Path(os.path.abspath(path)))
    if step is not None:
        try:
            chosen = folder.folder_of(step)
        except FileNotFoundError as error:
            raise errors.NotFinished(folder.root / str(step), found=str(error)) from None
        ref = _seal_step(folder, step, chosen, metrics=metrics or {}, process_count=process_count)
        return () if ref is None else (ref,)
    return _seal_all(folder, process_count)


def _seal_all(folder: SealedFolder, process_count: int) -> tuple[CheckpointRef, ...]:
    for _, link in folder.linked_steps():
        log.warning("%s is not sealed: %s", link, LINKED_STEP)
    sealed = []
    for number, step_folder in folder.steps():
        try:
            ref = _seal_step(folder, number, step_folder, metrics={}, process_count=process_count)
        except errors.NotFinished as error:
            log.debug("not sealed: %s", error)
        except FileNotFoundError:
            if step_folder.exists():
                raise
            log.debug("%s was deleted while it was being sealed", step_folder)
        else:
            sealed += [] if ref is None else [ref]
    return tuple(sealed)


def verify_sealed(path: str | os.PathLike[str], step: int) -> CheckpointRef:
    """Compare every byte of a sealed step with its manifest; call it before the restore.

    Raises:
        DamagedCheckpoint: the step is not sealed, or has changed since; names the file.
        OSError: storage did not answer for a minute, or denies access; the checkpoint may be intact.
    """
    folder = SealedFolder(Path(os.path.abspath(path)))
    try:
        step_folder = folder.folder_of(step)
    except FileNotFoundError:
        reason = LINKED_STEP if step in dict(folder.linked_steps()) else "this step does not exist"
        raise errors.DamagedCheckpoint(folder.root / str(step), reason=reason) from None
    entry = folder.look(step, step_folder)
    if entry is None:
        raise errors.DamagedCheckpoint(step_folder, reason=f"not sealed: it has no {MANIFEST_FILE}")
    if isinstance(entry, Rejection):
        raise errors.DamagedCheckpoint(step_folder, reason=entry.reason)
    try:
        _verify(entry)
    except digests.DamagedFileError as error:
        raise errors.DamagedCheckpoint(step_folder, reason=str(error)) from None
    return entry.ref


def newest_sealed(path: str | os.PathLike[str]) -> int | None:
    """The newest step without a changed byte since it was sealed; None if no step is sealed. Refusals are logged.

    Raises:
        NoValidCheckpoint: steps are sealed and none is valid; gives the reason for each.
        OSError: storage did not answer for a minute, or denies access.
    """
    folder = SealedFolder(Path(os.path.abspath(path)))
    refused: list[Rejection] = []
    for entry in folder.walk() if folder.root.exists() else ():
        if isinstance(entry, Rejection):
            refused.append(entry)
        else:
            try:
                _verify(entry)
            except digests.DamagedFileError as error:
                refused.append(Rejection(SEALED_ATTEMPT, entry.ref.step, str(error)))
            else:
                return entry.ref.step
        log.warning("%s: step %d is refused: %s", folder.root, refused[-1].step, refused[-1].reason)
    if refused:
        raise errors.NoValidCheckpoint(folder.root, refused)
    return None


def _verify(found: Found) -> None:
    files = found.manifest.files
    digests.verify_files(found.folder, files, threads=IO_THREADS, transient_seconds=TRANSIENT_SECONDS)


def _seal_step(
    root: SealedFolder, step: int, folder: Path, *, metrics: Mapping[str, float], process_count: int
) -> CheckpointRef | None:
    """The new seal; None if the step is sealed. A manifest that cannot be trusted is not replaced: a person must decide."""
    entry = root.look(step, folder)
    if entry is not None:
        if isinstance(entry, Rejection):
            raise errors.NotFinished(folder, found=f"a manifest that cannot be trusted: {entry.reason}")
        return None
    _require_finished(folder)
    paths = [path.relative_to(folder).as_posix() for path in fs.walk_files(folder)]
    for path in paths:
        fs.sync_file(folder / path)
    for below in fs.walk_folders(folder):
        fs.sync_folder(below)
    fs.sync_folder(folder.parent)
    files = digests.describe_files(folder, [p for p in paths if not _is_ours(p)], threads=IO_THREADS)
    data = manifest.to_bytes(
        Manifest(
            format=manifest.FORMAT,
            run="",
            job_uid="",
            attempt=SEALED_ATTEMPT,
            step=step,
            process_count=process_count,
            device_kind="",
            tree_digest="",
            parent="",
            files=tuple(sorted(files, key=lambda e: e.path)),
            metrics={name: float(value) for name, value in metrics.items() if math.isfinite(float(value))},
        )
    )
    fs.publish_file(folder / MANIFEST_FILE, data)
    return CheckpointRef(SEALED_ATTEMPT, step, manifest.digest_of(data))


def _is_ours(path: str) -> bool:
    """The manifest itself, and what a killed sealing left of it."""
    return path == MANIFEST_FILE or path.startswith(f"{MANIFEST_FILE}.")


def _require_finished(folder: Path) -> None:
    """Raise NotFinished unless the save is complete. Orbax itself accepts even an empty folder with a number as its name."""
    if not (folder / COMMIT_FILE).is_file():
        found = f"no {COMMIT_FILE}: the save is not complete, or an Orbax before 0.12.3 wrote it"
        raise errors.NotFinished(folder, found=found)
    try:
        stamp = json.loads((folder / METADATA_FILE).read_bytes())["commit_timestamp_nsecs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.NotFinished(folder, found=f"{METADATA_FILE}: {error!r}") from None
    if not stamp:
        raise errors.NotFinished(folder, found=f"{METADATA_FILE}: no commit time")
    if not any(entry.is_dir() for entry in os.scandir(folder)):
        raise errors.NotFinished(folder, found="no item in its folder")
