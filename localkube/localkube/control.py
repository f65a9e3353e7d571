"""The client of a cluster's supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localkube.errors import SupervisorError
from localkube.registry import RegistryEntry

_ANSWER_SECONDS = 40.0
_START_SECONDS = 10.0
_END_SECONDS = 40.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class ProcessState:
    """One process of a cluster; `exit_code` is None while it runs, negative if a signal ended it."""

    pid: int
    role: str
    exit_code: int | None


@dataclass(frozen=True)
class ProcessSpec:
    """A command and the name of its process; `role` is `component` or `node`."""

    name: str
    argv: Sequence[str]
    log: Path
    role: str = "component"
    environment: Mapping[str, str] = field(default_factory=dict)


class Control:
    """Sends requests to a supervisor. Every method raises SupervisorError if it is gone or refuses."""

    def __init__(self, entry: RegistryEntry) -> None:
        self._entry = entry

    def processes(self) -> dict[str, ProcessState]:
        """Every process that the supervisor has started, by name."""
        answer = self._ask({"operation": "list"})
        return {name: ProcessState(**state) for name, state in answer["processes"].items()}

    def reserve_port(self) -> int:
        """A loopback port that stays this cluster's until its end."""
        return int(self._ask({"operation": "reserve_port"})["port"])

    def start(self, program: ProcessSpec) -> int:
        """Start a process and return its id."""
        request = {
            "operation": "start",
            "name": program.name,
            "argv": [str(part) for part in program.argv],
            "log": str(program.log),
            "role": program.role,
            "environment": dict(program.environment),
        }
        return int(self._ask(request)["pid"])

    def restart(self, name: str) -> int:
        """Kill a process with SIGKILL, if it runs, and start it as before. Returns the new process id."""
        return int(self._ask({"operation": "restart", "name": name})["pid"])

    def stop(self, name: str, *, signal_number: int = signal.SIGKILL, grace_seconds: float = 0.0) -> int | None:
        """End the process `name` and all that it started. Returns the exit code, None if there is none.

        Its process group gets the signal, and what still runs after `grace_seconds` gets SIGKILL.
        """
        request = {
            "operation": "stop",
            "name": name,
            "signal": int(signal_number),
            "grace_seconds": grace_seconds,
        }
        code = self._ask(request)["exit_code"]
        return None if code is None else int(code)

    def forget(self, name: str) -> None:
        """Remove a process that has ended from the list."""
        self._ask({"operation": "forget", "name": name})

    def detach(self) -> None:
        """Let the cluster outlive the process that started it."""
        self._ask({"operation": "detach"})

    def shutdown(self) -> None:
        """End the cluster and wait until all of its processes and files are gone."""
        self._ask({"operation": "shutdown"})
        deadline = time.monotonic() + _END_SECONDS
        while self._entry.folder.exists():
            if time.monotonic() > deadline:
                raise SupervisorError(f"cluster {self._entry.name!r} has not ended within {_END_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def _ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_ANSWER_SECONDS)
                connection.connect(str(self._entry.socket))
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as stream:
                    answer = json.loads(stream.readline() or b"null")
        except (OSError, ValueError) as error:
            raise SupervisorError(f"the supervisor of cluster {self._entry.name!r} does not answer: {error}") from error
        if not isinstance(answer, dict):
            raise SupervisorError(f"the supervisor of cluster {self._entry.name!r} ended without an answer")
        if "error" in answer:
            raise SupervisorError(f"{request['operation']} {request.get('name', '')}: {answer['error']}")
        return answer


def launch_supervisor(entry: RegistryEntry, lock_handle: int, log: Path) -> subprocess.Popen[bytes]:
    """Start the supervisor of a claimed entry. The cluster ends when the returned process's input pipe closes.

    The supervisor inherits `lock_handle`, the open lock of `entry`, and writes to `log`. Raises SupervisorError with that
    log if it does not answer in time.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "localkube.supervisor", entry.name, str(lock_handle), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(lock_handle,),
            start_new_session=True,
        )
    deadline = time.monotonic() + _START_SECONDS
    while not entry.socket.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise SupervisorError(f"the supervisor did not start:\n{log.read_text() if log.exists() else ''}")
        time.sleep(_POLL_SECONDS)
    return process
