"""Inspection of the run's folder for the operator, which has no storage: what it holds, and whether it is writable."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast_agent import loop_events
from holdfast_contract.sync import MAX_LIST, Inspection

if TYPE_CHECKING:
    from holdfast_contract.manifest import Owner
    from holdfast_contract.runfolder import RunFolder

INSPECT_SECONDS: Final = 30.0
"""How long storage may take before the inspection reports that it does not answer."""
_PROBE_BYTES: Final = 4096
_PROBE_PREFIX: Final = ".holdfast-probe-"


class Inspector:
    """Inspects in a thread of its own: a hung file server must block nothing but the inspection."""

    def __init__(self, path: str, run: str, post: Callable[[loop_events.Event], None]) -> None:
        """Prepare; ``start`` begins an inspection.

        Args:
            path: The checkpoint path, as this container sees it.
            run: Name of the run's folder under it.
            post: Queues an event for the loop; called on the thread.
        """
        self._path, self._run, self._post = path, run, post
        self._thread: threading.Thread | None = None
        self._deadline: float | None = None
        self._attempt = 0

    def start(self, attempt: int, now: float) -> None:
        """Begin an inspection unless one is running. Its result is posted as ``Inspected``."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._deadline, self._attempt = now + INSPECT_SECONDS, attempt
        self._thread = threading.Thread(target=self._inspect, args=(attempt,), name="inspect", daemon=True)
        self._thread.start()

    def check(self, now: float) -> None:
        """Post a failure, once, if the running inspection is past its deadline."""
        if self._deadline is None or self._thread is None:
            return
        if not self._thread.is_alive():
            self._deadline = None
        elif now >= self._deadline:
            self._deadline = None
            error = f"{self._path}: storage did not answer within {INSPECT_SECONDS:.0f} s"
            self._post(loop_events.Inspected(self._attempt, Inspection(highest_attempt=0, error=error)))

    def _inspect(self, attempt: int) -> None:
        self._post(loop_events.Inspected(attempt, inspect(self._path, self._run)))


def inspect(path: str, run: str) -> Inspection:
    """What the run's folder holds, or which path cannot be used and why. Never raises.

    Args:
        path: The checkpoint path, as this container sees it.
        run: Name of the run's folder under it; created if it is missing.
    """
    from holdfast_contract.runfolder import RunFolder

    if "://" in path:
        return Inspection(0, error=f"{path}: found a URI, allowed: a directory that the pod mounts")
    problem = _write_problem(Path(path), Path(path) / run)
    if problem:
        return Inspection(0, error=problem)
    try:
        return _survey(RunFolder(Path(path) / run))
    except (OSError, ValueError) as error:  # ValueError: an unreadable owner record; it names its file
        return Inspection(0, error=_describe(error, Path(path) / run))


def _survey(folder: RunFolder) -> Inspection:
    owner: Owner | None = folder.owner()
    return Inspection(folder.highest_attempt(), folder.candidates(MAX_LIST), owner)


def _describe(error: Exception, path: Path) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or path}: {error.strerror or error}"
    return str(error)


def _write_problem(base: Path, folder: Path) -> str:
    """Write, sync, rename, read and remove a file in the run's folder. Why that is impossible; "" if it is not."""
    try:
        if not base.is_dir():
            found = "a file" if base.exists() else "nothing"
            return f"{base}: found {found}, allowed: a directory that exists (the pod template mounts it)"
        folder.mkdir(exist_ok=True)
        _probe(folder)
    except OSError as error:
        return f"{_describe(error, folder)}; the run's folder must be writable"
    return ""


def _probe(folder: Path) -> None:
    content = secrets.token_bytes(_PROBE_BYTES)
    name = f"{_PROBE_PREFIX}{secrets.token_hex(8)}"
    written, renamed = folder / f"{name}.tmp", folder / name
    try:
        with open(written, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written.rename(renamed)
        found = renamed.read_bytes()
    finally:
        written.unlink(missing_ok=True)
        renamed.unlink(missing_ok=True)
    if found != content:
        raise OSError(f"{renamed}: read back {len(found)} bytes that differ from what was written")
