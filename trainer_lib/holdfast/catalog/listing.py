"""What checkpoints lie below a path and whether each of them is valid: read only, outside a session, without JAX."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from holdfast import errors
from holdfast.catalog.sealing import IO_THREADS, METADATA_FILE, SEALED_ATTEMPT, SealedFolder
from holdfast.state.leaves import STRUCTURE_FILE
from holdfast.store.format import digests
from holdfast.store.read.candidates import CheckpointChoice, Metric, by_metric
from holdfast_contract.keys import MANIFEST_FILE, PARTIAL_FILE
from holdfast_contract.manifest import CheckpointRef, Manifest, Rejection
from holdfast_contract.runfolder import Found, RunFolder

Taken = TypeVar("Taken")
TRANSIENT_SECONDS: Final = 5.0
"""How long a fault of storage is retried here, where a person waits."""


class Validity(enum.StrEnum):
    """What is known of a checkpoint."""

    VALID = "valid"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"  # storage did not answer or denied access, which says nothing about the checkpoint


@dataclass(frozen=True)
class ListedCheckpoint:
    """One checkpoint as it lies on storage. ``attempt`` is 0 and ``run`` "" where another program wrote it.

    ``status`` says that every listed file has its size (and, after a deep check, its digest); else ``reason`` says why
    not. ``manifest`` is None where it cannot be believed.
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
        """How status and pins name it."""
        return CheckpointRef(self.attempt, self.step, self.digest)

    @property
    def valid(self) -> bool:
        """Whether nothing speaks against it at the depth of the check."""
        return self.status is Validity.VALID

    @property
    def bytes(self) -> int:
        """Of all listed files."""
        return sum(entry.size for entry in self.manifest.files) if self.manifest else 0

    @property
    def metrics(self) -> dict[str, float]:
        """As given to ``commit``; only finite numbers are kept."""
        return dict(self.manifest.metrics) if self.manifest else {}


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder that holds the checkpoints of one run, or of one Orbax manager; of a run perhaps one ``attempt`` alone."""

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
        """Newest first, manifests read one by one."""
        for entry in self.folder.walk():
            number = entry.ref.attempt if isinstance(entry, Found) else entry.attempt
            if self.attempt in {None, number}:
                yield entry

    def look(self, attempt: int, step: int) -> Found | Rejection | None:
        """What lies at one place; None if no manifest is there."""
        if isinstance(self.folder, RunFolder):
            return self.folder.look(attempt, step)
        try:
            return self.folder.look(step, self.folder.folder_of(step))
        except FileNotFoundError:
            return None

    def check(self, entry: Found | Rejection, *, deep: bool) -> ListedCheckpoint:
        """The entry's status: sizes of all files and, if ``deep``, their digests."""
        if isinstance(entry, Rejection):
            folder = self._folder_of(entry)
            return ListedCheckpoint(self.run, entry.attempt, entry.step, folder, Validity.DAMAGED, entry.reason)
        status, reason = _examine(entry, deep=deep)
        ref = entry.ref
        return ListedCheckpoint(
            self.run, ref.attempt, ref.step, entry.folder, status, reason, ref.digest, entry.manifest
        )

    def without_manifest(self) -> tuple[Path, ...]:
        """Folders of steps that no manifest vouches for: unfinished or abandoned saves, steps that are not sealed."""
        if isinstance(self.folder, SealedFolder):
            folders = [path for _, path in self.folder.steps()]
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
        except FileNotFoundError:  # deleted meanwhile
            return self.root / str(rejection.step)


def checkpoints(
    path: str | os.PathLike[str], *, run: str | None = None, deep: bool = False
) -> tuple[ListedCheckpoint, ...]:
    """All checkpoints below ``path``, each run's newest first, with their status and the reasons.

    Args:
        path: a checkpoint path, the folder of a run or attempt in it, or the folder of an Orbax manager whose steps were sealed.
        run: only this run below ``path``.
        deep: compare digests of all files, not only sizes.

    Raises:
        FileNotFoundError: there is no such path, or no run of that name.
    """
    found: list[ListedCheckpoint] = []
    for place in places(path, run=run):
        found += [place.check(entry, deep=deep) for entry in place.entries()]
    return tuple(found)


def places(path: str | os.PathLike[str], *, run: str | None = None) -> tuple[CheckpointFolder, ...]:
    """The runs and managers' folders at or directly below ``path``, by name. Raises FileNotFoundError."""
    root = Path(os.path.abspath(path))
    if run is not None:
        root = root / run
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    here = _place_at(root)
    if here is not None:
        return (here,)
    if run is None and root.name.isdecimal() and _is_run(root.parent):
        return (CheckpointFolder(RunFolder(root.parent), int(root.name)),)
    below = (_place_at(Path(entry.path)) for entry in sorted(os.scandir(root), key=lambda e: e.name) if entry.is_dir())
    return tuple(place for place in below if place is not None)


def one_place(path: str | os.PathLike[str], *, run: str | None = None) -> CheckpointFolder:
    """The only run or manager's folder there. Raises FileNotFoundError, or ValueError if there are several."""
    found = places(path, run=run)
    if not found:
        raise FileNotFoundError(f"{os.fspath(path)}: no checkpoint of Holdfast, and no sealed one, lies there")
    if len(found) > 1:
        names = ", ".join(place.root.name for place in found)
        raise ValueError(f"run: found nothing, allowed: one of {names}")
    return found[0]


def step_at(path: str | os.PathLike[str]) -> tuple[CheckpointFolder, Found | Rejection]:
    """The one checkpoint whose own folder is ``path``. Raises FileNotFoundError."""
    folder = Path(os.path.abspath(path))
    if not os.path.lexists(folder / MANIFEST_FILE):
        raise FileNotFoundError(f"{folder}: no {MANIFEST_FILE}, so it is no checkpoint")
    attempt, step = folder.parent.name, folder.name
    if attempt.isdecimal() and step.isdecimal() and _is_run(folder.parent.parent):
        place = CheckpointFolder(RunFolder(folder.parent.parent))
        entry = place.look(int(attempt), int(step))
    else:
        place = CheckpointFolder(SealedFolder(folder.parent))
        numbers = {path: number for number, path in SealedFolder(folder.parent).steps()}
        entry = place.look(SEALED_ATTEMPT, numbers[folder]) if folder in numbers else None
    if entry is None:
        raise FileNotFoundError(f"{folder}: is not the folder of a step")
    return place, entry


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


def _place_at(root: Path) -> CheckpointFolder | None:
    if _is_run(root):
        return CheckpointFolder(RunFolder(root))
    sealed = SealedFolder(root)
    if (not root.name.isdecimal() or not _is_run(root.parent)) and any(
        _has_any(folder, MANIFEST_FILE, METADATA_FILE) for _, folder in sealed.steps()
    ):
        return CheckpointFolder(sealed)
    return None


def _is_run(root: Path) -> bool:
    """Whether attempts lie there: an owner record, or, should that be lost, a step below a number."""
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


def choose(
    place: CheckpointFolder, choice: CheckpointChoice, take: Callable[[Found], Taken]
) -> tuple[Found, Taken, tuple[Rejection, ...]]:
    """The checkpoint to load, what ``take`` made of it, and what was refused before it.

    A given step (of the newest attempt that has it) is taken or refused, with no other in its place. The best walks
    from the best value on, else from the newest.

    Args:
        place: where to look.
        choice: what for.
        take: compares every byte with the manifest; raises DamagedCheckpoint to refuse.

    Raises:
        DamagedCheckpoint, NoValidCheckpoint: see there. FileNotFoundError: there is no candidate at all.
        StorageError: storage did not answer or denied access. What ``take`` raises besides.
    """
    if choice.step is not None:
        entry = _newest_of(place, choice.step)
        return *take_one(place, entry, take), ()
    refused: list[Rejection] = []
    for entry in place.entries() if choice.best is None else _best_first(place, choice.best):
        try:
            found, taken = take_one(place, entry, take)
        except errors.DamagedCheckpoint as damaged:
            number = entry.ref if isinstance(entry, Found) else entry
            refused.append(Rejection(number.attempt, number.step, damaged.reason))
            continue
        newer = (r for r in refused if choice.best or (r.attempt, r.step) > (found.ref.attempt, found.ref.step))
        return found, taken, tuple(sorted(newer, key=lambda r: (r.attempt, r.step), reverse=True))
    if refused:
        raise errors.NoValidCheckpoint(place.root, refused)
    raise FileNotFoundError(f"{place.root}: no checkpoint")


def take_one(place: CheckpointFolder, entry: Found | Rejection, take: Callable[[Found], Taken]) -> tuple[Found, Taken]:
    """Take this checkpoint and no other, unless sizes of its files speak against it. Raises as ``choose``."""
    found = require_valid(place, entry, deep=False)
    return found, take(found)


def require_valid(place: CheckpointFolder, entry: Found | Rejection, *, deep: bool) -> Found:
    """The entry, if a check finds nothing against it. Raises DamagedCheckpoint, StorageError."""
    checked = place.check(entry, deep=deep)
    if checked.status is Validity.UNKNOWN:
        raise errors.StorageError(checked.reason, path=checked.folder)
    if not checked.valid or isinstance(entry, Rejection):
        raise errors.DamagedCheckpoint(checked.folder, reason=checked.reason)
    return entry


def _best_first(place: CheckpointFolder, metric: Metric) -> list[Found | Rejection]:
    """Refusals first: any of them may have been the best."""
    entries = list(place.entries())
    found = [entry for entry in entries if isinstance(entry, Found)]
    rated = by_metric(found, metric)
    if found and not rated:
        raise FileNotFoundError(f"{place.root}: no checkpoint has a value of the metric {metric[0]!r}")
    return [*(entry for entry in entries if isinstance(entry, Rejection)), *rated]


def _newest_of(place: CheckpointFolder, step: int) -> Found | Rejection:
    for entry in place.entries():  # newest first: of several attempts the last counts
        if step == (entry.ref.step if isinstance(entry, Found) else entry.step):
            return entry
    raise FileNotFoundError(f"{place.root}: no checkpoint of step {step}")
