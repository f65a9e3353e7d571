"""The running clusters of this user: a folder for each, with a lock that the cluster's supervisor holds."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localkube.errors import ClusterNameError
from localkube.locks import try_lock
from localkube.mounts import detach_mounts_below
from localkube.paths import registry_root

_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")
_SOCKET_PATH_BYTES = 107
_GLANCE_SECONDS = 0.3
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class RegistryEntry:
    """The registry folder of one cluster."""

    name: str

    @property
    def folder(self) -> Path:
        """Holds the record and the control socket; mode 0700."""
        return registry_root() / self.name

    @property
    def socket(self) -> Path:
        """Where the supervisor answers."""
        return self.folder / "control.sock"

    @property
    def lock(self) -> Path:
        """The lock file, locked as long as the cluster has an owner or a supervisor."""
        return self.folder / "lock"

    def read(self) -> dict[str, Any]:
        """What is known about the cluster; empty while it is being created."""
        try:
            return dict(json.loads((self.folder / "cluster.json").read_text()))
        except FileNotFoundError:
            return {}

    def write(self, record: Mapping[str, object]) -> None:
        """Replace the record as a whole."""
        scratch = self.folder / ".cluster.json.new"
        scratch.write_text(json.dumps(record, indent=2) + "\n")
        scratch.rename(self.folder / "cluster.json")

    def remove(self) -> None:
        """Delete the cluster's state folder, then the entry itself.

        Raises OSError and deletes nothing if a mount in the state folder cannot be detached.
        """
        state = self.read().get("state_dir")
        if state:
            detach_mounts_below(Path(state))
            shutil.rmtree(state, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def claim(name: str) -> tuple[RegistryEntry, int]:
    """Create the entry of a new cluster. Returns it with the handle of its lock, which the supervisor inherits.

    Raises ClusterNameError if the name is malformed or belongs to a running cluster.
    """
    if not _NAME.match(name):
        raise ClusterNameError(f"cluster name {name!r}: must be at most 40 lower-case letters, digits and inner dashes")
    entry = RegistryEntry(name)
    if len(os.fsencode(entry.socket)) > _SOCKET_PATH_BYTES:
        raise ClusterNameError(f"{entry.socket} is too long for a socket; set XDG_RUNTIME_DIR to a shorter path")
    sweep()
    while True:
        entry.folder.mkdir(mode=0o700, exist_ok=True)
        handle = _open_lock(entry, create=True)
        if handle is None:
            continue
        if not _lock_soon(handle):
            os.close(handle)
            raise ClusterNameError(f"a cluster named {name!r} is running already (or being started)")
        if _still_there(entry, handle):
            return entry, handle
        os.close(handle)


def running() -> list[RegistryEntry]:
    """All running clusters, sorted by name."""
    return [entry for entry in _entries() if _is_locked(entry)]


def find(name: str) -> RegistryEntry:
    """The entry of a running cluster. Raises ClusterNameError naming those that do run."""
    names = [entry.name for entry in running()]
    if name not in names:
        raise ClusterNameError(f"no cluster named {name!r} is running (running: {', '.join(names) or 'none'})")
    return RegistryEntry(name)


def sweep() -> list[str]:
    """Remove the files that killed supervisors left, and return the clusters' names. Their processes died with them."""
    removed = []
    for entry in _entries():
        handle = _open_lock(entry, create=False)
        if handle is None:
            continue
        try:
            if try_lock(handle) and _still_there(entry, handle):
                entry.remove()
                removed.append(entry.name)
        finally:
            os.close(handle)
    return removed


def _entries() -> list[RegistryEntry]:
    return [RegistryEntry(folder.name) for folder in sorted(registry_root().iterdir()) if folder.is_dir()]


def _is_locked(entry: RegistryEntry) -> bool:
    handle = _open_lock(entry, create=False)
    if handle is None:
        return False
    try:
        return not try_lock(handle)
    finally:
        os.close(handle)


def _open_lock(entry: RegistryEntry, *, create: bool) -> int | None:
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    try:
        return os.open(entry.lock, flags, 0o600)
    except FileNotFoundError:
        return None


def _lock_soon(handle: int) -> bool:
    """Take the lock; wait a moment, since another process may only be testing whether it is held."""
    deadline = time.monotonic() + _GLANCE_SECONDS
    while not try_lock(handle):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _still_there(entry: RegistryEntry, handle: int) -> bool:
    """Whether the locked file is still at its path; a sweep may just have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), entry.lock.stat())
    except FileNotFoundError:
        return False
