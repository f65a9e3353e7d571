"""A run's folder on storage, read only: which attempts and checkpoints it holds and who owns it.

``<path>/<run>/OWNER.json`` and ``<path>/<run>/<attempt>/<step>/HOLDFAST.json``. Standard library only: the agent
inspects storage with it before any attempt exists, and the library chooses with it what to restore. Nothing here
writes, loads an array or hashes a file: the library verifies a candidate's bytes.
"""

from __future__ import annotations

import enum
import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_contract import codec, manifest
from holdfast_contract.keys import MANIFEST_FILE, OWNER_FILE
from holdfast_contract.manifest import CheckpointRef, Manifest, Owner, Rejection

MAX_MANIFEST_BYTES: Final = 256 * 1024 * 1024
MAX_OWNER_BYTES: Final = 64 * 1024
LINKED_STEP: Final = "the step's folder is a symbolic link; found a link, allowed: a folder"
# Canonical decimals only: Holdfast never writes names such as `007`, `+1` or digits of other scripts.
_ATTEMPT_NAME: Final = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_STEP_NAME: Final = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


class OwnerRecordError(ValueError):
    """OWNER.json exists but is unreadable, so the owner is unknown. Nothing may write there before a person looks."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path, self.problem = path, problem
        remedy = "restore it, or remove it if no job uses the run"
        super().__init__(f"{path}: not a readable owner record: {problem}; {remedy}")


class BadManifestError(ValueError):
    """A manifest that exists but is invalid. The message names the field, what was found and what is allowed."""


@dataclass(frozen=True)
class Found:
    """A checkpoint folder whose manifest is readable and names this place."""

    ref: CheckpointRef
    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class Survey:
    """Every folder with a manifest, newest first by (attempt, step), as a candidate or a rejection."""

    found: tuple[Found, ...]
    rejected: tuple[Rejection, ...]


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run (``root`` = ``<path>/<run>``); its last part is the run's name.

    A missing root counts as an empty run. Every method may raise OSError if storage does not answer or denies access;
    that says nothing about any checkpoint.
    """

    root: Path

    @property
    def run(self) -> str:
        """The run's name, as every manifest in it must repeat."""
        return self.root.name

    @property
    def owner_file(self) -> Path:
        """The path of the owner record."""
        return self.root / OWNER_FILE

    def attempt_folder(self, attempt: int) -> Path:
        """The folder that only this attempt writes into."""
        return self.root / str(attempt)

    def step_folder(self, attempt: int, step: int) -> Path:
        """The folder of one checkpoint."""
        return self.attempt_folder(attempt) / str(step)

    def attempts(self) -> tuple[int, ...]:
        """Attempts that have a folder, ascending. Real directories with canonical numbers only, never links."""
        found = _numbered(self.root, _ATTEMPT_NAME)
        return tuple(sorted(number for number, kind in found if kind is _Kind.FOLDER))

    def newest_attempt(self) -> int:
        """The highest attempt that has a folder; 0 if there is none."""
        return max(self.attempts(), default=0)

    def highest_attempt(self) -> int:
        """The highest number that is taken: by an attempt, or by a stray file or link where its folder would be.

        The next attempt is numbered above it. 0 if no number is taken.
        """
        return max((number for number, _ in _numbered(self.root, _ATTEMPT_NAME)), default=0)

    def candidates(self, limit: int | None = None) -> tuple[CheckpointRef, ...]:
        """Checkpoints with a readable manifest that names its place, newest first, at most ``limit``."""
        refs: list[CheckpointRef] = []
        for entry in self.walk():
            if limit is not None and len(refs) >= limit:
                break
            if isinstance(entry, Found):
                refs.append(entry.ref)
        return tuple(refs)

    def survey(self) -> Survey:
        """Every candidate and every rejection, each newest first."""
        entries = tuple(self.walk())
        return Survey(
            found=tuple(e for e in entries if isinstance(e, Found)),
            rejected=tuple(e for e in entries if isinstance(e, Rejection)),
        )

    def walk(self) -> Iterator[Found | Rejection]:
        """Every candidate or rejection, newest first. Reads a manifest only when the caller asks for the next one."""
        for attempt in reversed(self.attempts()):
            steps = sorted(_numbered(self.attempt_folder(attempt), _STEP_NAME), reverse=True)
            for step, kind in steps:
                if kind is _Kind.LINK:
                    yield Rejection(attempt, step, LINKED_STEP)
                    continue
                entry = self.look(attempt, step) if kind is _Kind.FOLDER else None
                if entry is not None:
                    yield entry

    def look(self, attempt: int, step: int) -> Found | Rejection | None:
        """What one step's folder holds: a candidate, a rejection, or None if it has no manifest."""
        folder = self.step_folder(attempt, step)
        try:
            data = read_regular_file(folder / MANIFEST_FILE, MAX_MANIFEST_BYTES)
            if data is None:
                return None
            return self._accept(attempt, step, data)
        except BadManifestError as error:
            return Rejection(attempt, step, f"{MANIFEST_FILE}: {error}")

    def _accept(self, attempt: int, step: int, data: bytes) -> Found:
        try:
            read = manifest.from_bytes(data)
        except codec.CodecError as error:
            raise BadManifestError(f"{len(data)} bytes, not a manifest: {error}") from None
        claims, place = (read.run, read.attempt, read.step), (self.run, attempt, step)
        if claims != place:
            raise BadManifestError(f"run, attempt, step: found {claims}, allowed here: {place}")
        ref = CheckpointRef(attempt, step, manifest.digest_of(data))
        return Found(ref, self.step_folder(attempt, step), read)

    def owner(self) -> Owner | None:
        """The owner record; None if the run has no owner yet.

        Raises:
            OwnerRecordError: the file exists and is not a readable record.
        """
        try:
            data = read_regular_file(self.owner_file, MAX_OWNER_BYTES)
        except BadManifestError as error:
            raise OwnerRecordError(self.owner_file, str(error)) from None
        if data is None:
            return None
        try:
            return codec.decode(Owner, data)
        except codec.CodecError as error:
            raise OwnerRecordError(self.owner_file, str(error)) from None


def read_regular_file(path: Path, max_bytes: int) -> bytes | None:
    """All bytes of a regular file; None if it does not exist.

    Raises:
        BadManifestError: it is no regular file, is empty, or exceeds ``max_bytes``.
        OSError: storage does not answer or denies access.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadManifestError("found a symbolic link, allowed: a regular file") from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadManifestError("found a folder or device, allowed: a regular file")
        if not 0 < status.st_size <= max_bytes:
            raise BadManifestError(f"size: found {status.st_size} bytes, allowed: 1 to {max_bytes}")
        with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
            data = file.readall() or b""
    finally:
        os.close(fd)
    if len(data) != status.st_size:
        raise BadManifestError(f"size: found {len(data)} of {status.st_size} bytes while reading")
    return data


class _Kind(enum.StrEnum):
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


def _numbered(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, _Kind]]:
    """(number, kind) of each entry whose name is a canonical number; all other names are ignored."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not pattern.fullmatch(entry.name):
                    continue
                if entry.is_symlink():
                    yield int(entry.name), _Kind.LINK
                elif entry.is_dir(follow_symlinks=False):
                    yield int(entry.name), _Kind.FOLDER
                else:
                    yield int(entry.name), _Kind.OTHER
    except (FileNotFoundError, NotADirectoryError):
        return
