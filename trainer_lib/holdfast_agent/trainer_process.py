"""One trainer process: spawned in its own session, with its output relayed and its end classified."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast_agent import reaper
from holdfast_agent.container_output import Relay
from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Cause
from holdfast_contract.sync import TrainerExit

NOT_FOUND_CODE: Final = 127
"""The code with which a shell reports a command that does not exist."""
NOT_EXECUTABLE_CODE: Final = 126
"""The code with which a shell reports a command that it may not execute."""


class TrainerProcess:
    """A running trainer. Its pid is also its session and its process group."""

    def __init__(self, attempt: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Spawn the process.

        Args:
            attempt: The attempt that it runs in.
            command: Program and arguments.
            environment: All of its environment variables.

        Raises:
            OSError: the command cannot be executed.
        """
        self.attempt = attempt
        self.status: int | None = None
        """The wait status, once reaped."""
        self.hung = False
        self._oom_kills = reaper.oom_kills()
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
        """Whether all output has been copied to the container's."""
        return all(relay.finished for relay in self._relays)

    def exit(self) -> TrainerExit:
        """How the process ended. Requires that ``status`` is set."""
        if self.status is None:
            raise RuntimeError(f"attempt {self.attempt}: the trainer (pid {self.pid}) has not ended")
        number = os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0
        code = 128 + number if number else os.WEXITSTATUS(self.status)
        cause = None
        if self.hung:
            code, cause = int(ExitCode.HANG), Cause.HANG
        elif number == signal.SIGKILL and reaper.oom_kills() > self._oom_kills:
            cause = Cause.OUT_OF_MEMORY
        return TrainerExit(self.attempt, code, number, cause, self._relays[1].last_lines)

    def kill(self) -> None:
        """Send SIGKILL to the process and to all its descendants. Repeat until none is left."""
        # Once the process is reaped, its pid may belong to another one, so the group is signalled only before.
        reaper.kill_descendants(self.pid if self.status is None else None)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the trainer process alone, unless it has been reaped."""
        if self.status is None:
            os.kill(self.pid, number)  # not reaped, so the pid is still its own; a zombie ignores signals


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
        # Python ignores these two signals, and ignored signals stay ignored across exec.
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )


def failed_start(attempt: int, command: Sequence[str], error: OSError) -> TrainerExit:
    """The exit of a trainer that could not be started.

    Args:
        attempt: The attempt that it was to run in.
        command: Program and arguments.
        error: Why spawning failed.
    """
    missing = error.errno in {errno.ENOENT, errno.ENOTDIR}
    code = NOT_FOUND_CODE if missing else NOT_EXECUTABLE_CODE
    return TrainerExit(attempt, code, last_lines=f"cannot start {command[0]!r}: {error.strerror}")
