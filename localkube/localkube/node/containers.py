"""One run of one container: its sandbox program, its signals, and its end."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_BOOT = f"import sys; sys.path.insert(0, {str(HERE)!r}); import sandbox; sandbox.main()"
START_SECONDS = 30.0
LOG_TAIL_LINES, LOG_TAIL_BYTES, MESSAGE_BYTES = 80, 2048, 4096
KILLED = 128 + signal.SIGKILL

log = logging.getLogger(__name__)


class StartFailed(Exception):
    """A container's command could not be started."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the host, and where the container sees it."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """Everything that the sandbox program needs to start a container."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    hostname: str
    log: str
    mounts: Sequence[Mount]
    read_only_root: bool
    no_new_privileges: bool


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How this node isolates containers."""

    isolation: str
    """`namespaces`, or `process` on a machine that forbids them; then nothing can be mounted."""
    user_namespace: bool
    root: str
    """An empty folder on which every container mounts its own root."""

    def spec(self, plan: ContainerPlan) -> dict[str, Any]:
        """The sandbox program's input, without the descriptor that it reports on."""
        own = {"isolation": self.isolation, "user_namespace": self.user_namespace, "root": self.root}
        return asdict(plan) | own | {"node_pid": os.getpid()}


def launch(spec: dict[str, Any], *, output: int, status: int | None) -> subprocess.Popen[bytes]:
    """Start the sandbox program with `spec` as its input.

    `output` is the descriptor of its standard output and error, `status` the one that it reports on, if any. Call it on
    the main thread: the program dies with the thread that started it.
    """
    process = subprocess.Popen(
        # The real interpreter starts a few milliseconds sooner than the virtual environment's link to it.
        [os.path.realpath(sys.executable), "-I", "-S", "-c", _BOOT],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=[] if status is None else [status],
        start_new_session=True,
        env={},
    )
    if process.stdin:
        with (
            contextlib.suppress(BrokenPipeError),
            process.stdin as pipe,
        ):  # if it has ended, its status pipe says so too
            pipe.write(json.dumps(spec).encode())
    return process


class ContainerProcess:
    """A running container. SIGTERM goes to its first process; SIGKILL ends all of its processes."""

    def __init__(self, sandbox: subprocess.Popen[bytes], reader: asyncio.StreamReader) -> None:
        self._sandbox = sandbox
        self._reader = reader
        self.pid = 0
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._watcher: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, sandbox: Sandbox, plan: ContainerPlan) -> "ContainerProcess":
        """Start a container. Raises StartFailed with the reason."""
        loop = asyncio.get_running_loop()
        read_end, write_end = os.pipe()
        Path(plan.log).touch(0o600)  # noqa: ASYNC240  a local file
        with Path(plan.log).open("ab") as log:  # noqa: ASYNC230  a local file
            popen = launch(sandbox.spec(plan) | {"status_fd": write_end}, output=log.fileno(), status=write_end)
        os.close(write_end)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb"))
        self = cls(popen, reader)
        try:
            async with asyncio.timeout(START_SECONDS):
                first = await reader.readline()
        except TimeoutError as late:
            self.kill()
            raise StartFailed(f"not started within {START_SECONDS} s") from late
        except asyncio.CancelledError:
            popen.kill()  # the container's first process dies with it
            popen.wait()
            raise
        message = json.loads(first or "{}")
        if "pid" not in message:
            popen.wait()
            raise StartFailed(message.get("error") or f"the sandbox program failed: {tail(Path(plan.log))}")
        self.pid = int(message["pid"])
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def _watch(self) -> None:
        line = await self._reader.read()  # ends when the sandbox program, and so every process of it, is gone
        message = json.loads(line) if line else {}
        self._sandbox.wait()
        if "error" in message:
            log.error("the sandbox program of process %s failed: %s", self.pid, message["error"])
        killed_by = int(
            message.get("signal", signal.SIGKILL)
        )  # no report: it was killed, and with it all processes below it
        self.exit_code.set_result(int(message["exit"]) if "exit" in message else 128 + killed_by)

    async def wait(self, seconds: float | None = None) -> int | None:
        """The exit code (128 + n for signal n), or None if the container still runs after `seconds`."""
        done, _ = await asyncio.wait([self.exit_code], timeout=seconds)
        return int(self.exit_code.result()) if done else None

    def terminate(self) -> None:
        """SIGTERM to the first process."""
        self._sandbox.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to every process of the container."""
        self._sandbox.send_signal(signal.SIGUSR1)

    async def run_inside(self, sandbox: Sandbox, plan: ContainerPlan, seconds: float) -> tuple[int, str]:
        """Run another command in this container. Returns its exit code and the beginning of its output.

        `sandbox` is the node's, and `plan` says what to run. After `seconds` the command is killed and TimeoutError raised.
        """
        read_end, write_end = os.pipe()
        popen = launch(sandbox.spec(plan) | {"pid": self.pid}, output=write_end, status=None)
        os.close(write_end)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb"))
        try:
            async with asyncio.timeout(seconds):
                output = await reader.read()
                code = await asyncio.to_thread(popen.wait)
        finally:
            popen.kill()  # no effect if it has ended
            popen.wait()
            pipe.close()
        return code, output.decode(errors="replace")[:MESSAGE_BYTES]


def inside(plan: ContainerPlan, argv: Sequence[str]) -> ContainerPlan:
    """The plan of another command in the same container."""
    return replace(plan, argv=argv, mounts=())


def tail(log: Path) -> str:
    """The last lines of a log, as many as fit in a termination message."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines(keepends=True)
    return "".join(lines[-LOG_TAIL_LINES:])


def termination_message(container: Mapping[str, Any], written: Path, log: Path, exit_code: int) -> str:
    """The termination message of a container that ended with `exit_code`.

    It is the content of the file `written`, or the end of `log` if the policy in the container's specification says so.
    """
    with written.open("rb") as file:
        text = file.read(MESSAGE_BYTES).decode(errors="replace")
    if not text and exit_code != 0 and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        return tail(log)
    return text
