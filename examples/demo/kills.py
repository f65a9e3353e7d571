"""Kills the operator before and after each write of one recovery, at the proxy between it and the API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from localkube.faultproxy import FaultPoint, Write

MOST_KILLS: Final = 24
"""A bound, so that an operator which writes for ever fails the demo's claim instead of its patience."""


@dataclass
class WriteKiller:
    """A proxy hook: each write is killed once before it is forwarded and once after it is committed.

    A write is recognised by what it means, so that the next operator's repetition of it is the same write.
    """

    kill: Callable[[], int] = lambda: 0
    told: Callable[[str], object] = lambda _: None
    armed: bool = False
    killed: list[str] = field(default_factory=list)
    _seen: set[tuple[str, FaultPoint]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, write: Write, moment: FaultPoint) -> bool:
        """Whether to cut the connection: the operator was killed at this moment."""
        meaning = _meaning(write)
        with self._lock:
            if not self.armed or meaning is None or len(self.killed) >= MOST_KILLS or (meaning, moment) in self._seen:
                return False
            self._seen.add((meaning, moment))
            self.killed.append(f"{moment.value}: {meaning}")
        self.kill()
        self.told(f"killed, {moment.value}: {write}")
        return True

    def disarm(self) -> None:
        """Let every later write pass."""
        with self._lock:
            self.armed = False


def _meaning(write: Write) -> str | None:
    """What a write does, without what merely passes time; None for a status write that only reports progress."""
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
