"""Follows the log lines of a job's trainers and agents, and timestamps them with the record's clock."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.demo.record import Record


@dataclass(frozen=True)
class Line:
    """One log line of one worker."""

    at: float
    worker: int
    pod: str
    text: str


@dataclass
class LogFollower:
    """One ``kubectl logs --follow`` per pod; ``on_line`` is called on the reader's thread."""

    record: Record
    kubectl: Sequence[str]
    namespace: str
    on_line: Callable[[Line], None]
    lines: list[Line] = field(default_factory=list)
    _followed: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def follow_all(self, pods: dict[int, dict[str, Any]]) -> None:
        """Follow each worker's pod."""
        for worker, pod in pods.items():
            self.follow(pod["metadata"]["name"], worker)

    def follow(self, pod: str, worker: int) -> None:
        """Start following a pod, unless it is already followed."""
        if pod in self._followed:
            return
        command = [*self.kubectl, "logs", "--follow", "--namespace", self.namespace, pod]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
        )
        self._followed[pod] = process
        threading.Thread(target=self._read, args=(process, pod, worker), daemon=True, name=f"logs-{pod}").start()

    def stop(self) -> None:
        """Stop all followers."""
        for process in self._followed.values():
            process.kill()
            process.wait()

    def first(self, pattern: str, *, after: float, worker: int | None = None) -> Line | None:
        """Return the first line after an instant that matches the pattern."""
        expression = re.compile(pattern)
        for line in list(self.lines):
            if line.at >= after and expression.search(line.text) and worker in {None, line.worker}:
                return line
        return None

    def _read(self, process: subprocess.Popen[str], pod: str, worker: int) -> None:
        if process.stdout is None:
            return
        for text in process.stdout:
            line = Line(self.record.now(), worker, pod, text.rstrip())
            self.lines.append(line)
            self.on_line(line)
