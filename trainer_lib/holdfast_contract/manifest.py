"""The checkpoint manifest, references to checkpoints and the run's owner record.

A checkpoint exists only if its manifest does. The manifest is the last file written into a step's folder and the first
one read. It ends with its own digest, so that every reader detects damage to it. Job status and pins carry the digest
of the whole file, which closes the chain from status to bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from holdfast_contract import codec

FORMAT: Final = 1
HEALTHY_METRIC: Final = "healthy"
"""A metric that the library adds: 1 if the program's health predicate holds, 0 if not; absent without one."""
FILE_DIGEST: Final = "xxh3-128"
"""Algorithm of the per-file digests. It hashes at memory speed; it detects corruption, not malice."""

_HEX_128 = re.compile(r"[0-9a-f]{32}")


class CheckpointKey(NamedTuple):
    """Identifies a checkpoint within its run. Ordered: a later attempt's lineage supersedes an earlier one's."""

    attempt: int
    step: int


@dataclass(frozen=True, order=True)
class CheckpointRef:
    """One committed checkpoint. Ordered by (attempt, step): a later attempt's lineage supersedes an earlier one's.

    ``digest`` is the SHA-256 of the manifest's bytes, in hex.
    """

    attempt: int
    step: int
    digest: str = field(compare=False, default="")

    @property
    def key(self) -> CheckpointKey:
        """What identifies the checkpoint, without its content."""
        return CheckpointKey(self.attempt, self.step)


@dataclass(frozen=True)
class Rejection:
    """A candidate that must not be restored, and why. Written by the library, shown by the operator in job status."""

    attempt: int
    step: int
    reason: str

    @property
    def key(self) -> CheckpointKey:
        """Which checkpoint is rejected."""
        return CheckpointKey(self.attempt, self.step)


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: ``path`` relative to the step's folder with forward slashes, ``size`` in bytes."""

    path: str
    size: int
    digest: str

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if not self.path or self.path.startswith("/") or any(p in {"", ".", ".."} for p in parts):
            raise ValueError(f"path: found {self.path!r}, allowed: a relative path without '.' or '..'")
        if self.size < 0:
            raise ValueError(f"size: found {self.size}, allowed: 0 or more bytes")
        if not _HEX_128.fullmatch(self.digest):
            raise ValueError(f"digest: found {self.digest!r}, allowed: 32 lower-case hex digits ({FILE_DIGEST})")


@dataclass(frozen=True)
class Manifest:
    """What is in a checkpoint. Written last, by process 0, after every listed file is durable."""

    format: int
    run: str
    job_uid: str  # "" without a cluster
    attempt: int
    step: int
    process_count: int
    device_kind: str
    tree_digest: str  # digest of the abstract state: leaf paths, shapes, dtypes
    parent: str  # digest of the manifest that was restored or saved before this one; "" for the first
    files: tuple[FileEntry, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    pinned: bool = False  # the user asked to keep this step
    elapsed_seconds: float | None = None
    """Seconds that process 0 had trained since the run began: the restored checkpoint's value plus the time since then
    on a monotonic clock. Excludes downtime between attempts. None if an older version wrote the manifest."""

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format: found {self.format}, allowed: {FORMAT}; a newer Holdfast may read it")
        if self.attempt < 0 or self.step < 0 or self.process_count < 1:
            raise ValueError(
                f"attempt, step, process_count: found {self.attempt}, {self.step}, {self.process_count}, "
                "allowed: 0 or more, 0 or more, 1 or more"
            )
        paths = [f.path for f in self.files]
        if len(set(paths)) != len(paths):
            raise ValueError("files: a path is listed twice")


def is_healthy(metrics: Mapping[str, float]) -> bool:
    """Whether a checkpoint with these metrics may be among the best. It may unless its health predicate failed."""
    return metrics.get(HEALTHY_METRIC, 1.0) != 0.0


def to_bytes(manifest: Manifest) -> bytes:
    """The exact bytes that are stored: indented JSON with keys in field order, then the SHA-256 of all before it."""
    text = json.dumps(codec.to_jsonable(manifest), indent=1, allow_nan=False)
    body = text.removesuffix("\n}").encode() + b","
    return body + _tail(body)


def from_bytes(data: bytes) -> Manifest:
    """Read a stored manifest.

    Raises:
        codec.CodecError: the field that is wrong, or ``sha256`` if these are not the bytes that were stored.
    """
    body = data[: -len(_tail(b""))]
    if data != body + _tail(body):
        codec.decode(Manifest, data)  # raises a more precise error where it can
        found = data[len(body) :].decode(errors="replace").strip()
        raise codec.CodecError(
            "sha256", found, f"{hashlib.sha256(body).hexdigest()}, the digest of all bytes before it"
        )
    return codec.decode(Manifest, data)


def _tail(body: bytes) -> bytes:
    """The end of a stored manifest. Unlike the digest in a pin, it can always be compared."""
    return f'\n "sha256": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def digest_of(data: bytes) -> str:
    """The digest of a manifest's stored bytes, as carried in CheckpointRef and ``parent``."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Owner:
    """The job that may write into a run's folder: the content of OWNER.json.

    The library creates the file exclusively and replaces it only on take-over; library, agent and operator read it.
    """

    job_uid: str
    namespace: str
    name: str
    attempt: int
