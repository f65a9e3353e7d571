"""One trainer process: spawned in its own session, its output relayed, its end classified."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast_agent import processes
from holdfast_agent.output import Relay
from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Cause
from holdfast_contract.sync import TrainerExit

NOT_FOUND_CODE: Final = 127
"""What a shell says for a command that does not exist."""
NOT_EXECUTABLE_CODE: Final = 126


class Process:
    """A running trainer. Its pid is also its session and its process group."""

    def __init__(self, attempt: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Spawn. Raises OSError if the command cannot be executed."""
        self.attempt = attempt
        self.status: int | None = None
        """The wait status, once reaped."""
        self.hung = False
        self._oom_kills = processes.oom_kills()
        stdout, stdout_end = os.pipe()
        stderr, stderr_end = os.pipe()
        try:
            self.pid = _spawn(command, environment, stdout_end, stderr_end)
        except OSError:
            os.close(stdout)
            os.close(stderr)
            raise
        finally:
            os.close(stdout_end)
            os.close(stderr_end)
        self._relays = (Relay(stdout, 1), Relay(stderr, 2))

    @property
    def drained(self) -> bool:
        """Whether all output has been passed on."""
        return all(relay.finished for relay in self._relays)

    def exit(self) -> TrainerExit:
        """How it ended; only once ``status`` is there."""
        if self.status is None:
            raise RuntimeError(f"attempt {self.attempt}: the trainer (pid {self.pid}) has not ended")
        number = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        code = 128 + number if number else os.WEXITSTATUS(self.status)
        cause = None
        if self.hung:
            code, cause = int(ExitCode.HANG), Cause.HANG
        elif number == signal.SIGKILL and processes.oom_kills() > self._oom_kills:
            cause = Cause.OUT_OF_MEMORY
        return TrainerExit(self.attempt, code, number, cause, self._relays[1].last_lines)

    def kill(self) -> None:
        """SIGKILL to it and to everything that it started. Repeat until nothing is left."""
        # Once reaped, the pid may belong to anyone: the group is addressed only before.
        processes.kill_descendants(self.pid if self.status is None else None)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the trainer process alone, if it still is one."""
        if self.status is None:
            os.kill(self.pid, number)  # not reaped, so the pid is ours: at worst a zombie, which ignores it


def _spawn(command: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int) -> int:
    return os.posix_spawnp(
        command[0],
        list(command),
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, stdout, 1),
            (os.POSIX_SPAWN_DUP2, stderr, 2),
        ],
        setsid=True,
        setsigmask=[],
        # Python ignores these two, and what is ignored stays so over exec.
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )


def failed_start(attempt: int, command: Sequence[str], error: OSError) -> TrainerExit:
    """The exit of a trainer that could not even be started."""
    missing = error.errno in {errno.ENOENT, errno.ENOTDIR}
    code = NOT_FOUND_CODE if missing else NOT_EXECUTABLE_CODE
    return TrainerExit(attempt, code, last_lines=f"cannot start {command[0]!r}: {error.strerror}")
