"""The checkpoints below a path and whether each is valid: read only, outside a session, without JAX."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.catalog.sealing import IO_THREADS, METADATA_FILE, SEALED_ATTEMPT, SealedFolder
from holdfast.state.leaves import STRUCTURE_FILE
from holdfast.store.format import digests
from holdfast_contract.keys import MANIFEST_FILE, PARTIAL_FILE
from holdfast_contract.manifest import CheckpointKey, CheckpointRef, Manifest, Rejection
from holdfast_contract.runfolder import LINKED_STEP, Found, RunFolder

TRANSIENT_SECONDS: Final = 5.0
"""How long a transient error of storage is retried here, where a person waits for the answer."""


class Validity(enum.StrEnum):
    """What is known about a checkpoint."""

    VALID = "valid"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"  # storage did not answer or denied access, which says nothing about the checkpoint


@dataclass(frozen=True)
class ListedCheckpoint:
    """One checkpoint on storage. ``attempt`` is 0 and ``run`` is "" if another program wrote it.

    ``status`` is ``VALID`` if every listed file has its size and, after a deep check, its digest; otherwise ``reason`` says
    what is wrong. ``manifest`` is None if it cannot be trusted.
    """

    run: str
    attempt: int
    step: int
    folder: Path
    status: Validity
    reason: str = ""
    digest: str = ""
    manifest: Manifest | None = None

    @property
    def ref(self) -> CheckpointRef:
        """The reference that status and pins use."""
        return CheckpointRef(self.attempt, self.step, self.digest)

    @property
    def valid(self) -> bool:
        """Whether the check found nothing wrong."""
        return self.status is Validity.VALID

    @property
    def bytes(self) -> int:
        """Total size of all listed files."""
        return sum(entry.size for entry in self.manifest.files) if self.manifest else 0

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics given to ``commit``; only finite numbers are stored."""
        return dict(self.manifest.metrics) if self.manifest else {}


@dataclass(frozen=True)
class CheckpointFolder:
    """The folder of one run, or of one Orbax manager. ``attempt`` limits a run to one of its attempts."""

    folder: RunFolder | SealedFolder
    attempt: int | None = None

    @property
    def root(self) -> Path:
        """The folder itself."""
        return self.folder.root

    @property
    def run(self) -> str:
        """The run's name; "" for a manager's folder."""
        return self.folder.run if isinstance(self.folder, RunFolder) else ""

    def entries(self) -> Iterator[Found | Rejection]:
        """Checkpoints and refusals, newest first; each manifest is read when its turn comes. Raises OSError."""
        for entry in self.folder.walk():
            number = entry.ref.attempt if isinstance(entry, Found) else entry.attempt
            if self.attempt in {None, number}:
                yield entry

    def look(self, attempt: int, step: int) -> Found | Rejection | None:
        """The checkpoint of one step; None if it has no manifest."""
        if isinstance(self.folder, RunFolder):
            return self.folder.look(attempt, step)
        try:
            return self.folder.look(step, self.folder.folder_of(step))
        except FileNotFoundError:
            return None

    def check(self, entry: Found | Rejection, *, deep: bool) -> ListedCheckpoint:
        """Check an entry: the sizes of all its files and, if ``deep``, their digests."""
        if isinstance(entry, Rejection):
            folder = self._folder_of(entry)
            return ListedCheckpoint(self.run, entry.attempt, entry.step, folder, Validity.DAMAGED, entry.reason)
        status, reason = _examine(entry, deep=deep)
        ref = entry.ref
        return ListedCheckpoint(
            self.run, ref.attempt, ref.step, entry.folder, status, reason, ref.digest, entry.manifest
        )

    def without_manifest(self) -> tuple[Path, ...]:
        """Step folders without a manifest: unfinished or abandoned saves, and steps that are not sealed."""
        if isinstance(self.folder, SealedFolder):
            folders = [path for _, path in (*self.folder.steps(), *self.folder.linked_steps())]
        else:
            numbers = [n for n in self.folder.attempts() if self.attempt in {None, n}]
            attempts = [self.folder.attempt_folder(n) for n in numbers]
            folders = [path for attempt in attempts for path in attempt.iterdir() if path.name.isdecimal()]
        return tuple(sorted(f for f in folders if f.is_dir() and not os.path.lexists(f / MANIFEST_FILE)))

    def _folder_of(self, rejection: Rejection) -> Path:
        if isinstance(self.folder, RunFolder):
            return self.folder.step_folder(rejection.attempt, rejection.step)
        try:
            return self.folder.folder_of(rejection.step)
        except FileNotFoundError:  # a link, or deleted meanwhile
            return dict(self.folder.linked_steps()).get(rejection.step, self.root / str(rejection.step))


def checkpoints(
    path: str | os.PathLike[str], *, run: str | None = None, deep: bool = False
) -> tuple[ListedCheckpoint, ...]:
    """All checkpoints below ``path``, each run's newest first, with their status and the reason for it.

    Args:
        path: a checkpoint path, the folder of a run or attempt in it, or the folder of an Orbax manager whose steps were
            sealed.
        run: only this run below ``path``.
        deep: compare the digests of all files, not only their sizes.

    Raises:
        FileNotFoundError: the path does not exist, or has no run of that name.
    """
    found: list[ListedCheckpoint] = []
    for holder in checkpoint_folders(path, run=run):
        found += [holder.check(entry, deep=deep) for entry in holder.entries()]
    return tuple(found)


def checkpoint_folders(path: str | os.PathLike[str], *, run: str | None = None) -> tuple[CheckpointFolder, ...]:
    """The folders of runs and managers at or directly below ``path``, by name. Raises FileNotFoundError."""
    root = Path(os.path.abspath(path))
    if run is not None:
        root = root / run
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    here = _folder_at(root)
    if here is not None:
        return (here,)
    if run is None and root.name.isdecimal() and _is_run(root.parent):
        return (CheckpointFolder(RunFolder(root.parent), int(root.name)),)
    below = (_folder_at(Path(entry.path)) for entry in sorted(os.scandir(root), key=lambda e: e.name) if entry.is_dir())
    return tuple(holder for holder in below if holder is not None)


def only_checkpoint_folder(path: str | os.PathLike[str], *, run: str | None = None) -> CheckpointFolder:
    """The only folder of a run or manager there. Raises FileNotFoundError, or ValueError if there are several."""
    found = checkpoint_folders(path, run=run)
    if not found:
        raise FileNotFoundError(f"{os.fspath(path)}: found no checkpoint of Holdfast and no sealed one")
    if len(found) > 1:
        names = ", ".join(holder.root.name for holder in found)
        raise ValueError(f"`run` is required but not set: the path has several runs; allowed: {names}")
    return found[0]


def step_at(path: str | os.PathLike[str]) -> tuple[CheckpointFolder, Found | Rejection]:
    """The one checkpoint whose own folder is ``path``. Raises FileNotFoundError."""
    folder = Path(os.path.abspath(path))
    if not os.path.lexists(folder / MANIFEST_FILE):
        raise FileNotFoundError(f"{folder}: not a checkpoint: it has no {MANIFEST_FILE}")
    attempt, step = folder.parent.name, folder.name
    if attempt.isdecimal() and step.isdecimal() and _is_run(folder.parent.parent):
        holder = CheckpointFolder(RunFolder(folder.parent.parent))
        number = CheckpointKey(int(attempt), int(step))
    else:
        sealed = SealedFolder(folder.parent)
        holder = CheckpointFolder(sealed)
        steps = {path: step for step, path in (*sealed.steps(), *sealed.linked_steps())}
        if folder not in steps:
            raise FileNotFoundError(f"{folder}: not the folder of a step")
        number = CheckpointKey(SEALED_ATTEMPT, steps[folder])
    if folder.is_symlink():
        return holder, Rejection(*number, LINKED_STEP)
    entry = holder.look(*number)
    if entry is None:
        raise FileNotFoundError(f"{folder}: not the folder of a step")
    return holder, entry


def is_step(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is the folder of one checkpoint."""
    return os.path.lexists(os.path.join(path, MANIFEST_FILE))


def _examine(found: Found, *, deep: bool) -> tuple[Validity, str]:
    files = found.manifest.files
    if found.ref.attempt != SEALED_ATTEMPT and STRUCTURE_FILE not in {entry.path for entry in files}:
        return Validity.DAMAGED, f"{STRUCTURE_FILE}: not listed in the manifest"
    verify = digests.verify_files if deep else digests.verify_sizes
    try:
        verify(found.folder, files, threads=IO_THREADS, transient_seconds=TRANSIENT_SECONDS)
    except digests.DamagedFileError as error:
        return Validity.DAMAGED, str(error)
    except OSError as error:
        return Validity.UNKNOWN, f"storage: {error}"
    return Validity.VALID, ""


def _folder_at(root: Path) -> CheckpointFolder | None:
    if _is_run(root):
        return CheckpointFolder(RunFolder(root))
    sealed = SealedFolder(root)
    if (not root.name.isdecimal() or not _is_run(root.parent)) and any(
        _has_any(folder, MANIFEST_FILE, METADATA_FILE) for _, folder in (*sealed.steps(), *sealed.linked_steps())
    ):
        return CheckpointFolder(sealed)
    return None


def _is_run(root: Path) -> bool:
    """Whether ``root`` is a run's folder: it has an owner record or, should that be lost, a step below an attempt number."""
    run = RunFolder(root)
    if os.path.lexists(run.owner_file):
        return True
    attempts = (run.attempt_folder(attempt) for attempt in run.attempts())
    return any(
        _has_any(step, MANIFEST_FILE, PARTIAL_FILE)
        for attempt in attempts
        for step in attempt.iterdir()
        if step.name.isdecimal()
    )


def _has_any(folder: Path, *names: str) -> bool:
    return any(os.path.lexists(folder / name) for name in names)
