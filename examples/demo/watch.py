"""Follows one TrainingJob and records each change of its status."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from examples.demo.record import Kind, Record

POLL_SECONDS: Final = 0.1
Getter = Callable[[], dict[str, Any]]


class JobWatch:
    """Polls a job's status in a thread. ``status`` is the latest one; ``seen`` has the instant at which each fact first held."""

    def __init__(self, record: Record, get_job: Getter) -> None:
        self.record = record
        self.status: dict[str, Any] = {}
        self.seen: dict[str, float] = {}
        self.error = ""
        self._get_job = get_job
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="job-watch", daemon=True)

    def start(self) -> None:
        """Start following the job."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following the job."""
        self._stop.set()
        self._thread.join(timeout=5)

    def until(self, holds: Callable[[dict[str, Any]], bool], *, what: str, timeout_seconds: float) -> dict[str, Any]:
        """Return the first status for which ``holds`` is true. Raises TimeoutError with ``what`` and the last status."""
        with self._changed:
            if self._changed.wait_for(lambda: holds(self.status), timeout=timeout_seconds):
                return self.status
        shown = {
            k: self.status.get(k) for k in ("state", "attempt", "activeAttempt", "progress", "preemption", "lastEnd")
        }
        raise TimeoutError(f"{what}: not seen within {timeout_seconds:.0f} s; last status {shown} {self.error}")

    def seen_committed(self, point: dict[str, Any]) -> float:
        """Return when the status first named this checkpoint as committed."""
        return self.seen.get(_name(point), self.record.now())

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            try:
                status = self._get_job().get("status") or {}
            except Exception as error:  # the API server may be restarting; `until` reports the last error
                self.error = f"({type(error).__name__}: {error})"
                continue
            self._note(self.status, status)
            with self._changed:
                self.status = status
                self._changed.notify_all()

    def _note(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._note_attempt(old, new)
        self._note_checkpoints(old.get("checkpoint") or {}, new.get("checkpoint") or {})
        self._note_preemption(old.get("preemption") or {}, new.get("preemption") or {})
        progress = new.get("progress") or {}
        if progress:
            self.record.point(progress["step"], (progress.get("metrics") or {}).get("loss"))
        if old.get("state") != new.get("state"):
            self._first(f"state {new.get('state')}")

    def _first(self, fact: str) -> float:
        return self.seen.setdefault(fact, self.record.now())

    def _note_attempt(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        if new.get("attempt", 0) != old.get("attempt", 0):
            end = new.get("lastEnd") or {}
            why = f" after {end['cause']}" if end and new["attempt"] > 1 else ""
            self.record.mark("operator", Kind.INFO, f"attempt {new['attempt']} persisted{why}")
            self._first(f"attempt {new['attempt']}")
        if new.get("activeAttempt", 0) != old.get("activeAttempt", 0):
            self._first(f"active {new['activeAttempt']}")
            if _moving(old):
                self.record.mark("operator", Kind.GOOD, f"switched to attempt {new['activeAttempt']}")
        if _moving(new) and not _moving(old):
            workers = ", ".join(str(w) for w in new["transition"].get("workers", []))
            self.record.mark("operator", Kind.INFO, f"replacement for worker {workers} created; training continues")

    def _note_checkpoints(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        newest = new.get("newest")
        if newest and _name(newest) not in self.seen:
            self._first(_name(newest))
            self.record.mark("checkpoints", Kind.GOOD, f"seen committed: {_name(newest)}")
        for rejected in new.get("rejected") or []:
            if rejected not in (old.get("rejected") or []):
                self.record.mark("checkpoints", Kind.WARN, f"refused: {_name(rejected)}: {rejected['reason']}")
        restored = new.get("restored")
        if restored and restored != old.get("restored"):
            self.record.mark("checkpoints", Kind.INFO, f"restored: {_name(restored)}")

    def _note_preemption(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        if new.get("saveId") and new.get("saveId") != old.get("saveId"):
            notice = new.get("notice") or {}
            self._first(f"notice {new['saveId']}")
            self.record.mark(
                "operator", Kind.WARN, f"notice for {notice.get('node')}: {notice.get('source')}; save requested"
            )
        if new.get("outcome") != old.get("outcome") and new.get("outcome") not in (None, "pending"):
            spare = new.get("secondsToSpare")
            tail = "" if spare is None else f", {spare:.1f} s to spare"
            self._first(f"outcome {new['outcome']} {new.get('saveId')}")
            self.record.mark("operator", Kind.GOOD, f"save {new['outcome']} at step {new.get('savedStep')}{tail}")


def _moving(status: dict[str, Any]) -> bool:
    return bool((status.get("transition") or {}).get("training"))


def _name(point: dict[str, Any]) -> str:
    return f"attempt {point['attempt']} step {point['step']}"
