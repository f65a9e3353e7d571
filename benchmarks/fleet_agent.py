"""A process with many simulated agents, for ``benchmarks.fleet``: real TLS connections with real tokens, no trainers.

Standard input takes one JSON object per line: ``{"pod": {...}}`` adds an agent, ``{"crash": uid}`` ends its trainer with
code 1. Standard output has one line for each directive that an agent takes in and for each trainer that makes its first
step. Instants are those of the machine's monotonic clock, which all processes share.

An agent holds, waits, breaks off and reconnects as ``holdfast_agent`` does, and with its constants.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import ssl
import sys
import time
from dataclasses import dataclass, replace
from typing import Final

from holdfast_agent.agent import STEPPING_HOLD_SECONDS
from holdfast_agent.sync_client import PACE_SECONDS
from holdfast_contract import codec, keys
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.sync import (
    HOLD_SECONDS,
    PROTOCOL,
    WAIT_HEADER,
    Action,
    Directive,
    Inspection,
    Progress,
    Report,
    TrainerExit,
    TrainerPhase,
)

START_SECONDS: Final = 1.0
"""From a directive to run until the first step."""
STEP_SECONDS: Final = 1.0
SAVE_STEPS: Final = 300
RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Service:
    """Where the operator serves, and how its certificate is checked."""

    port: int
    name: str
    context: ssl.SSLContext


@dataclass(frozen=True)
class Pod:
    """The pod of an agent, with a token that is bound to it."""

    uid: str
    index: int
    token: str


def say(**line: object) -> None:
    """Write one line to the process that started this one."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Agent:
    """One agent and the trainer that it would have."""

    def __init__(self, pod: Pod, service: Service) -> None:
        self._pod, self._service = pod, service
        self._report = Report(PROTOCOL, 0, "", TrainerPhase.NONE)
        self._began, self._first_step = 0.0, 0
        self._urgent = asyncio.Event()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._over = False

    async def run(self) -> None:
        """Report and obey until the operator says to exit."""
        while not self._over:
            try:
                await self._exchange()
            except (OSError, EOFError, ValueError, codec.CodecError):
                self._close()
                await asyncio.sleep(random.uniform(RETRY_SECONDS / 2, RETRY_SECONDS))
        self._close()

    def crash(self) -> None:
        """End the trainer with code 1."""
        self._count_steps()
        ended = TrainerExit(self._report.attempt, 1)
        self._change(replace(self._report, phase=TrainerPhase.EXITED, exit=ended))

    async def _exchange(self) -> None:
        started = time.monotonic()
        self._urgent.clear()
        self._count_steps()
        report = self._report
        stepping = report.phase is TrainerPhase.RUNNING
        answer = await self._ask(codec.encode(report), STEPPING_HOLD_SECONDS if stepping else HOLD_SECONDS)
        if answer is None:
            return
        directive = codec.decode(Directive, answer)
        if directive.tag != report.obeys:
            self._obey(directive)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + started + PACE_SECONDS - time.monotonic()
            ):
                await self._urgent.wait()

    async def _ask(self, body: bytes, hold_seconds: float) -> bytes | None:
        """The answer's body; None if the request was broken off, because something changed in meaning."""
        reader, writer = await self._open()
        head = (
            f"POST {keys.SYNC_PATH} HTTP/1.1\r\nHost: {self._service.name}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self._pod.token}\r\n{WAIT_HEADER}: {hold_seconds:g}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer, urgent = asyncio.ensure_future(_read(reader)), asyncio.ensure_future(self._urgent.wait())
        try:
            await asyncio.wait([answer, urgent], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self._close()
                return None
            status, content = answer.result()
        finally:
            answer.cancel()
            urgent.cancel()
        if status in {200, 403}:
            return content
        raise ValueError(f"the operator answered {status}")

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None:
            service = self._service
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", service.port, ssl=service.context, server_hostname=service.name
            )
        return self._reader, self._writer

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    def _change(self, report: Report) -> None:
        self._report = report
        self._urgent.set()

    def _count_steps(self) -> None:
        report = self._report
        if report.phase is not TrainerPhase.RUNNING:
            return
        step = self._first_step + int((time.monotonic() - self._began) / STEP_SECONDS)
        saved = step // SAVE_STEPS * SAVE_STEPS
        newest = report.newest
        if self._pod.index == 0 and saved > (newest.step if newest is not None else 0):
            newest = CheckpointRef(report.attempt, saved, f"{saved:064x}")
        self._report = replace(report, progress=Progress(step, 1_000_000, STEP_SECONDS), newest=newest)

    def _obey(self, told: Directive) -> None:
        say(uid=self._pod.uid, at=time.monotonic(), action=told.action.value, attempt=told.attempt)
        report = replace(self._report, obeys=told.tag, attempt=told.attempt)
        if told.action is Action.EXIT:
            self._over = True
        elif told.action is Action.RUN:
            if report.phase is TrainerPhase.NONE or self._report.attempt != told.attempt:
                report = replace(
                    report, phase=TrainerPhase.STARTING, exit=None, progress=None, inspection=None, restored=told.pin
                )
                first = (told.pin.step if told.pin else 0) + 1
                asyncio.get_running_loop().call_later(START_SECONDS, self._step, told.attempt, first)
        else:
            found = Inspection(max(0, told.attempt - 1), (report.newest,) if report.newest is not None else ())
            inspection = found if told.action is Action.INSPECT else None
            report = replace(report, phase=TrainerPhase.NONE, exit=None, progress=None, inspection=inspection)
        self._report = report

    def _step(self, attempt: int, first: int) -> None:
        if self._report.attempt != attempt or self._report.phase is not TrainerPhase.STARTING:
            return
        self._began, self._first_step = time.monotonic(), first
        self._change(
            replace(self._report, phase=TrainerPhase.RUNNING, progress=Progress(first, 1_000_000, STEP_SECONDS))
        )
        say(uid=self._pod.uid, at=self._began, action="stepped", attempt=attempt)


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of an HTTP answer that states its length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), await reader.readexactly(int(headers["content-length"]))


async def _serve(service: Service) -> None:
    agents: dict[str, Agent] = {}
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with asyncio.TaskGroup() as group:
        running: list[asyncio.Task[None]] = []
        while line := await lines.readline():
            order = json.loads(line)
            if "pod" in order:
                pod = Pod(**order["pod"])
                agents[pod.uid] = Agent(pod, service)
                running.append(group.create_task(agents[pod.uid].run()))
            else:
                agents[order["crash"]].crash()
                say(uid=order["crash"], at=time.monotonic(), action="crashed", attempt=0)
        for task in running:
            task.cancel()


def main() -> None:
    """Run until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", required=True, help="the name in the operator's certificate")
    parser.add_argument("--ca", required=True, help="file of the authority that signed it")
    options = parser.parse_args()
    context = ssl.create_default_context(cafile=options.ca)
    asyncio.run(_serve(Service(options.port, options.name, context)))


if __name__ == "__main__":
    main()
