"""A real agent process with a real control endpoint and a trainer script, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from holdfast_contract import keys
from holdfast_contract.sync import Action, Directive
from tests.support.operator.scripted_operator import ScriptedOperator
from tests.support.operator.tls import Authority, server_context
from tests.support.polling import until

SERVICE = "localhost"

PREAMBLE = """
import json, os, signal, socket, subprocess, sys, threading, time
from holdfast_contract.local import *
from holdfast_contract.manifest import CheckpointRef, Rejection
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import Progress, SaveReport
ATTEMPT = int(os.environ["HOLDFAST_ATTEMPT"])

def connect():
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ["HOLDFAST_AGENT_SOCKET"])
    link.sendall(to_line(Hello(ATTEMPT, os.getpid())))
    return link

def say(link, **fields):
    link.sendall(to_line(TrainerUpdate(**fields)))

def commands(link):
    for line in link.makefile("rb"):
        yield from_line(line)

def for_ever():
    threading.Event().wait()
"""


class AgentRig:
    """Builds the world of one agent and starts it. Everything lives in ``folder``."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder, self.authority = folder, authority
        self.storage = folder / "storage"
        self.storage.mkdir()
        self.token_file = folder / "token"
        self.token_file.write_text("first-token")
        self.termination_log = folder / "termination-log"
        self.termination_log.touch()
        self.tls = server_context(authority, folder, SERVICE)
        self.operator = ScriptedOperator(self.tls)
        self.process: subprocess.Popen[bytes] | None = None
        self.wrapper: tuple[str, ...] = ()  # a command that runs the agent's command
        self.log = folder / "log"
        self.environment = {
            keys.ENV_CONTROL_URL: f"https://{SERVICE}:{self.operator.port}",
            keys.ENV_CONTROL_CA: authority.pem,
            keys.ENV_TOKEN_FILE: str(self.token_file),
            keys.ENV_REPLICA_INDEX: "0",
            keys.ENV_CHECKPOINT_PATH: str(self.storage),
            keys.ENV_RUN: "a-run",
            keys.ENV_AGENT_SOCKET: str(folder / "runtime" / keys.AGENT_SOCKET_NAME),
            keys.ENV_TERMINATION_LOG: str(self.termination_log),
            keys.ENV_GRACE_SECONDS: "8",
        }

    def start(self, trainer: str, **environment: str) -> None:
        """Start an agent whose trainer runs this script (after PREAMBLE)."""
        script = self.folder / "trainer.py"
        script.write_text(PREAMBLE + textwrap.dedent(trainer))
        self.start_command([sys.executable, "-u", str(script)], **environment)

    def start_command(self, command: list[str], **environment: str) -> None:
        """Start an agent with this command."""
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*self.wrapper, sys.executable, "-m", "holdfast_agent", "--", *command],
                env=os.environ | self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run_attempt(self, attempt: int, **fields: Any) -> None:
        """Direct the agent to run this attempt."""
        self.operator.direct(Directive(Action.RUN, attempt, coordinator="127.0.0.1:9", **fields))

    def terminate(self) -> None:
        """What the kubelet sends when the pod is deleted."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self, seconds: float = 20.0) -> int:
        """The container's exit code, once it has ended."""
        assert self.process is not None
        return self.process.wait(seconds)

    @property
    def output(self) -> str:
        """The container's log so far."""
        return self.log.read_text(errors="replace")

    def wait_output(self, text: str, seconds: float = 15.0) -> str:
        """The log once it holds this text."""
        until(lambda: text in self.output, seconds, f"{text!r} in the log", seen=lambda: self.output)
        return self.output

    def close(self) -> None:
        """End everything."""
        if self.process is not None and self.process.poll() is None:
            kill_tree(self.process.pid)
            self.process.wait(10)
        self.operator.close()
        assert not self.operator.faults, self.operator.faults


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and everything below it: the agent is no PID 1 here, so nobody else would."""
    import psutil

    try:
        everyone = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in everyone:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
