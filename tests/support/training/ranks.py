"""Real training processes for tests: one per rank, joined by ``jax.distributed`` over the loopback interface."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast_contract import keys
from tests.support.agent.agent_socket import AgentSocket
from tests.support.polling import until
from tests.support.training import compiled
from tests.support.training.coordinator import coordinator_address

TINY = Path(__file__).parent / "tiny_train.py"


@dataclass
class Rank:
    """One process and what it said."""

    process: subprocess.Popen[bytes]
    log: Path
    agent: AgentSocket | None = None

    @property
    def output(self) -> str:
        """Everything printed so far, both streams."""
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, timeout_seconds: float = 60.0) -> re.Match[str]:
        """The first match of a regular expression in the output."""

        def found() -> bool:
            assert self.process.poll() is None or re.search(pattern, self.output), (
                f"the process ended with {self.process.returncode} before {pattern!r}:\n{self.output[-3000:]}"
            )
            return re.search(pattern, self.output) is not None

        until(found, timeout_seconds, f"{pattern!r} in {self.log}")
        match = re.search(pattern, self.output)
        assert match is not None
        return match


@dataclass
class World:
    """All ranks of one attempt."""

    ranks: list[Rank] = field(default_factory=list)

    def __getitem__(self, index: int) -> Rank:
        return self.ranks[index]

    def codes(self, timeout_seconds: float = 60.0) -> list[int]:
        """Exit codes once all have ended; negative for a signal."""
        deadline = time.monotonic() + timeout_seconds
        for rank in self.ranks:
            try:
                rank.process.wait(max(0.01, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"still running after {timeout_seconds:g} s:\n{rank.output[-3000:]}") from None
        return [rank.process.returncode for rank in self.ranks]

    def kill(self) -> None:
        """End what still runs."""
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGKILL)
            rank.process.wait()
            if rank.agent is not None:
                rank.agent.close()


@contextmanager
def world(
    folder: Path,
    *arguments: str,
    count: int = 2,
    attempt: int | None = None,
    agents: bool = False,
    program: Path = TINY,
    share_compiled: bool = True,
    **environment: str,
) -> Iterator[World]:
    """Run the tiny training program, or another, in ``count`` processes with checkpoints in ``folder``.

    Unless they ``share_compiled`` programs with the other trainings of the test run, each rank keeps its own in
    ``folder/compiled-<rank>``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    started = World()
    with ExitStack() as stack:
        coordinator = stack.enter_context(coordinator_address())
        stack.callback(started.kill)
        for index in range(count):
            shared = compiled.environment() if share_compiled else {}
            own = _environment(folder, index, count, coordinator) | shared | environment
            if attempt is not None:
                own[keys.ENV_ATTEMPT] = str(attempt)
            number = len(list(logs.iterdir()))
            agent = None
            if agents:
                agent = AgentSocket(logs / f"{number}.sock")
                own[keys.ENV_AGENT_SOCKET] = str(agent.path)
            command = [sys.executable, str(program), *arguments]
            started.ranks.append(_start(command, own, logs / f"{number}-rank-{index}.log", agent))
        yield started


def _start(command: Sequence[str], environment: dict[str, str], log: Path, agent: AgentSocket | None) -> Rank:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    return Rank(process, log, agent)


def _environment(folder: Path, index: int, count: int, coordinator: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith((keys.ENV_PREFIX, "JAX_", "XLA_"))}
    own = {
        keys.ENV_CHECKPOINT_PATH: str(folder),
        keys.ENV_RUN: "run",
        keys.ENV_COMPILE_CACHE: str(folder / f"compiled-{index}"),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
        "PYTHONUNBUFFERED": "1",
    }
    if count > 1:
        own |= {
            keys.ENV_REPLICAS: str(count),
            keys.ENV_PROCESS_INDEX: str(index),
            keys.ENV_COORDINATOR: coordinator,
            keys.ENV_POD_IP: "127.0.0.1",
        }
    return inherited | own
