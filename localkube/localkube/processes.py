"""The supervisor's children: they cannot outlive it, and they end together with all that they started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_POLL_SECONDS = 0.01
_KILL_SECONDS = 10.0

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if _LINUX else None


@dataclass(frozen=True)
class Launch:
    """How to start a process, also after it has ended."""

    argv: Sequence[str]
    log: Path
    role: str
    """`component` or `node`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to the supervisor's own."""


@dataclass
class Child:
    """A process that was started; `exit_code` is None while it runs, negative if a signal ended it."""

    launch: Launch
    process: subprocess.Popen[bytes]
    exit_code: int | None = None

    @property
    def pid(self) -> int:
        """Process id, also the id of its session and group."""
        return self.process.pid


def become_subreaper() -> None:
    """From now on, orphans of this process's descendants become its own children, so it can end them."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class ProcessTable:
    """Children by name. Use it from one thread: a child's death signal is tied to the thread that started it."""

    def __init__(self) -> None:
        self.children: dict[str, Child] = {}

    def start(self, name: str, launch: Launch) -> Child:
        """Start a process under a name that is free or whose process has ended.

        Raises ValueError if the name is in use, OSError if the program cannot be run.
        """
        known = self.children.get(name)
        if known is not None and known.exit_code is None:
            raise ValueError(f"it is running already, as process {known.pid}")
        with launch.log.open("ab") as log:
            process = subprocess.Popen(
                list(launch.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **launch.environment},
                start_new_session=True,
                preexec_fn=_own_reaper(),  # noqa: PLW1509 - the supervisor has one thread
            )
        child = Child(launch, process)
        self.children[name] = child
        return child

    def stop(self, name: str, *, signal_number: int, grace_seconds: float) -> Child:
        """End the process `name` and all that it started.

        Its process group gets the signal, and SIGKILL if the process still runs after `grace_seconds`. Raises KeyError
        for an unknown name.
        """
        child = self.children[name]
        self._signal_group(child, signal_number)
        if not self._await_exit([child], grace_seconds):
            self._signal_group(child, signal.SIGKILL)
            self._await_exit([child], _KILL_SECONDS)
        self.end_strays()
        return child

    def forget(self, name: str) -> None:
        """Remove a process that has ended from the list. Raises KeyError for an unknown name, ValueError if it runs."""
        self.reap()
        child = self.children[name]
        if child.exit_code is None:
            raise ValueError(f"it is running, as process {child.pid}")
        del self.children[name]

    def stop_all(self, *, node_grace_seconds: float) -> None:
        """End everything: nodes get SIGTERM and `node_grace_seconds`, the rest SIGKILL, for its data is deleted anyway."""
        nodes = [child for child in self.children.values() if child.launch.role == "node"]
        for node in nodes:
            self._signal_group(node, signal.SIGTERM)
        self._await_exit(nodes, node_grace_seconds)
        everyone = list(self.children.values())
        for child in everyone:
            self._signal_group(child, signal.SIGKILL)
        self._await_exit(everyone, _KILL_SECONDS)
        self.end_strays()

    def reap(self) -> None:
        """Collect every child that has ended, including those that this process did not start."""
        by_pid = {child.pid: child for child in self.children.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = by_pid.get(pid)
            if child is not None:
                child.exit_code = os.waitstatus_to_exitcode(status)
                child.process.returncode = child.exit_code

    def end_strays(self) -> None:
        """Kill the children that this process did not start: those that a dead node's pods left, and their children in turn."""
        deadline = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < deadline:
            self.reap()
            own = {child.pid for child in self.children.values() if child.exit_code is None}
            strays = [process for process in psutil.Process().children() if process.pid not in own]
            if not strays:
                return
            for stray in strays:
                # The id cannot have been reused: a dead child keeps it until reap() has collected it.
                os.kill(stray.pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)

    def _await_exit(self, children: Sequence[Child], limit_seconds: float) -> bool:
        deadline = time.monotonic() + limit_seconds
        while True:
            self.reap()
            if all(child.exit_code is not None for child in children):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)

    def _signal_group(self, child: Child, signal_number: int) -> None:
        self.reap()
        if child.exit_code is None:
            os.killpg(child.pid, signal_number)


def tied_to_parent(number: int) -> Callable[[], None]:
    """A `preexec_fn`: the kernel sends the child this signal when the thread that starts it has ended (Linux)."""
    parent = os.getpid()

    def tie() -> None:
        if _LIBC is None:
            return
        _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


def _own_reaper() -> Callable[[], None]:
    """A `preexec_fn`: the child dies with the supervisor and inherits the orphans of its descendants."""
    tie = tied_to_parent(signal.SIGKILL)

    def prepare() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        tie()

    return prepare
