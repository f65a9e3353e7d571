"""Kills the operator before and after each write of one recovery, at the proxy between it and the API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from localkube.faultproxy import FaultPoint, Write

MOST_KILLS: Final = 24
"""A bound, so that an operator that writes forever fails the demo's claim and does not hang the demo."""


@dataclass
class WriteKiller:
    """A proxy hook that kills the operator twice per write: before the write is forwarded, and after it is committed.

    It identifies a write by its meaning, so that the same write, repeated by the next operator, is not a new one.
    """

    kill: Callable[[], int] = lambda: 0
    on_kill: Callable[[str], object] = lambda _: None
    armed: bool = False
    killed: list[str] = field(default_factory=list)
    _seen: set[tuple[str, FaultPoint]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, write: Write, moment: FaultPoint) -> bool:
        """Return whether to cut the connection, because the operator has been killed at this moment."""
        meaning = _meaning(write)
        with self._lock:
            if not self.armed or len(self.killed) >= MOST_KILLS or (meaning, moment) in self._seen:
                return False
            self._seen.add((meaning, moment))
            self.killed.append(f"{moment.value}: {meaning}")
        self.kill()
        self.on_kill(f"killed, {moment.value}: {write}")
        return True

    def disarm(self) -> None:
        """Let every later write pass."""
        with self._lock:
            self.armed = False


def _meaning(write: Write) -> str:
    """Return what a write changes, without values that change with time alone."""
    if not write.path.endswith("/status"):
        name = _json(write.body).get("metadata", {}).get("name", "")
        return f"{write.method} {write.path.rsplit('/', 2)[-1]} {name}".strip()
    status: dict[str, Any] = _json(write.body).get("status") or {}
    conditions = sorted(f"{c.get('type')}={c.get('reason')}" for c in status.get("conditions") or [])
    restored = (status.get("checkpoint") or {}).get("restored") or {}
    parts = [
        f"status attempt {status.get('attempt')}/{status.get('activeAttempt')}",
        f"restarts {status.get('restartsTotal', 0)}",
        f"restored {restored.get('attempt')}.{restored.get('step')}",
        *conditions,
    ]
    return " ".join(parts)


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
