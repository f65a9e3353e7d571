"""The loop: the one thread that owns the agent's state, takes in every event and carries out what ``react`` returns."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from dataclasses import replace
from typing import Final

from holdfast_agent import loop_events, reacting, reaper, trainer_environment
from holdfast_agent.agent_settings import AgentSettings
from holdfast_agent.agent_state import AgentState, Trainer, on_directive, on_sigterm, on_update, with_answer_noted
from holdfast_agent.container_output import log, write_termination_log
from holdfast_agent.goodput_ledger import GoodputLedger
from holdfast_agent.inspection import Inspector
from holdfast_agent.report_slot import PendingReport, ReportSlot
from holdfast_agent.reporting import report_of
from holdfast_agent.sync_client import Service, SyncClient
from holdfast_agent.trainer_process import TrainerProcess, failed_start
from holdfast_agent.trainer_socket import TrainerSocket
from holdfast_contract.exits import ExitCode
from holdfast_contract.local import AgentCommand
from holdfast_contract.sync import HOLD_SECONDS, Action, Report

CALM_TICK_SECONDS: Final = 0.5
HURRIED_TICK_SECONDS: Final = 0.1
BUSY_TICK_SECONDS: Final = 0.02
"""How long the loop waits for events before it checks processes and deadlines: usually, while a deadline is near, and
while a process is ending."""
STEPPING_HOLD_SECONDS: Final = 1.0
"""How long the operator may hold a request of a stepping trainer, which is how old its reported progress may become."""
DRAIN_SECONDS: Final = 1.0
"""How long after a trainer's end its pipes and its connection may still deliver what it wrote."""
FLUSH_SECONDS: Final = 1.0
"""How long the agent waits at its end for the operator to answer its last report."""


class Agent:
    """One worker's first process. ``run`` returns the container's exit code."""

    def __init__(self, settings: AgentSettings, service: Service) -> None:
        """Open the socket. Raises OSError."""
        self._settings = settings
        self._limits = reacting.Limits(
            settings.orphan_seconds, settings.hang_step_seconds, settings.hang_start_seconds
        )  # fmt: skip
        self._events: queue.SimpleQueue[loop_events.Event] = queue.SimpleQueue()
        self._state = AgentState()
        self._process: TrainerProcess | None = None
        self._ended_at = 0.0
        self._ledger = GoodputLedger(time.monotonic())
        self._slot = ReportSlot()
        self._client = SyncClient(service, self._slot, self._events.put)
        self._socket = TrainerSocket(settings.socket_path, self._events.put)
        self._inspector = Inspector(settings.checkpoint_path, settings.run, self._events.put)
        self._number = 0
        self._urgent_number = 0
        self._meaning: Report | None = None

    def run(self) -> int:
        """Run until ``react`` says to leave."""
        self._install_signal_handlers()
        self._publish()
        self._client.start()
        while True:
            self._take_events()
            self._check_processes()
            leave = self._act()
            self._publish()
            if leave is not None:
                return self._end(leave)

    def _install_signal_handlers(self) -> None:
        # SimpleQueue.put is reentrant, so a handler may call it.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._events.put(loop_events.Terminate()))
        signal.signal(signal.SIGCHLD, lambda *_: self._events.put(loop_events.Wake()))

    def _take_events(self) -> None:
        """Wait for one event or a tick, then take in everything that is queued."""
        try:
            self._on_event(self._events.get(timeout=self._tick_seconds))
        except queue.Empty:
            return
        self._take_queued_events()

    def _take_queued_events(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._on_event(self._events.get_nowait())

    @property
    def _tick_seconds(self) -> float:
        """The longest wait for an event: short while a process ends or a deadline is near."""
        state = self._state
        trainer = state.running
        ending = trainer is not None and (trainer.stopping_since is not None or self._ended)
        if ending or (trainer is None and state.children):
            return BUSY_TICK_SECONDS
        stop_requested = state.pending_save is not None and state.pending_save.stop
        hurried = trainer is not None and (trainer.aborting_since is not None or stop_requested)
        return HURRIED_TICK_SECONDS if hurried or state.termination else CALM_TICK_SECONDS

    @property
    def _ended(self) -> bool:
        return self._process is not None and self._process.status is not None

    def _on_event(self, event: loop_events.Event) -> None:
        now, state = time.monotonic(), self._state
        match event:
            case loop_events.Directed(directive):
                self._state = on_directive(replace(state, unreachable_since=None), directive, now)
            case loop_events.Unreachable(since):
                self._state = replace(state, unreachable_since=since)
            case loop_events.Terminate():
                if state.termination is None:
                    log(f"SIGTERM: {self._settings.grace_seconds:g} s to save and end")
                self._state = on_sigterm(state, self._settings.grace_seconds, now)
            case loop_events.Inspected(attempt, inspection):
                if attempt == state.attempt and state.directive and state.directive.action is Action.INSPECT:
                    self._state = replace(state, inspection=inspection, inspected_at=now)
            case loop_events.Wake():
                pass
            case loop_events.Connected() | loop_events.Updated() | loop_events.Disconnected():
                self._on_trainer_event(event, now)

    def _on_trainer_event(
        self, event: loop_events.Connected | loop_events.Updated | loop_events.Disconnected, now: float
    ) -> None:
        trainer = self._state.running
        if trainer is None or trainer.attempt != event.attempt:
            return
        if isinstance(event, loop_events.Updated):
            self._ledger.record(event.update.buckets, now)
            if event.update.storage_error and event.update.storage_error != trainer.update.storage_error:
                log(f"storage: {event.update.storage_error}")
            self._state = on_update(self._state, event.update, now)
            return
        connected = isinstance(event, loop_events.Connected)
        disconnected_at = trainer.disconnected_at if connected else now
        trainer = replace(trainer, connected=connected, disconnected_at=disconnected_at, last_request_sent=None)
        self._state = replace(self._state, trainer=trainer)

    def _check_processes(self) -> None:
        now = time.monotonic()
        self._inspector.check(now)
        ended, left = reaper.reap()
        process, trainer = self._process, self._state.running
        if process is not None and process.pid in ended and process.status is None:
            process.status, self._ended_at = ended[process.pid], now
        self._state = replace(self._state, children=left)
        if process is None or process.status is None:
            return
        if left:
            process.kill()  # no process that the trainer started may outlive it
        drained = not left and process.drained and self._socket.drained
        if trainer is not None and (drained or now >= self._ended_at + DRAIN_SECONDS):
            self._finish(process)

    def _finish(self, process: TrainerProcess) -> None:
        """The trainer is over: take in its last messages and log how it ended."""
        self._take_queued_events()
        trainer = self._state.running
        if trainer is None:
            return
        self._ledger.end_trainer(self._ended_at)
        end = process.exit()
        by_itself = trainer.stopping_since is None or process.hung
        ending = f"ended with code {end.code}" + (f" (signal {end.signal})" if end.signal else "")
        log(f"attempt {trainer.attempt}: the trainer {ending if by_itself else 'was stopped'}")
        trainer = replace(
            trainer, running=False, connected=False, ended_at=self._ended_at, exit=end if by_itself else None
        )
        self._state = replace(self._state, trainer=trainer)

    def _act(self) -> reacting.Leave | None:
        now = time.monotonic()
        for intent in reacting.react(self._state, self._limits, now):
            match intent:
                case reacting.Leave():
                    return intent
                case reacting.Spawn(directive):
                    self._spawn(trainer_environment.for_trainer(self._settings, os.environ, directive), now)
                case reacting.Stop(reason):
                    self._stop(reason, now)
                case reacting.Abort(reason):
                    self._abort(reason, now)
                case reacting.SendSaveRequest(save):
                    if self._socket.send(AgentCommand(save.request(now) if save else None)):
                        self._change_trainer(last_request_sent=save)
                case reacting.ForwardSigterm():
                    self._forward_sigterm()
                case reacting.Inspect():
                    self._inspector.start(self._state.attempt, now)
        return None

    def _spawn(self, variables: dict[str, str], now: float) -> None:
        attempt, command = self._state.attempt, self._settings.command
        log(f"attempt {attempt} begins: {' '.join(command)}")
        self._socket.expect(attempt)
        self._ledger.begin_trainer(now)
        trainer = Trainer(attempt, progressed_at=now)
        try:
            self._process = TrainerProcess(attempt, command, variables)
        except OSError as error:
            end = failed_start(attempt, command, error)
            log(f"attempt {attempt}: {end.last_lines}")
            self._ledger.end_trainer(now)
            self._process, trainer = None, replace(trainer, running=False, ended_at=now, exit=end)
        self._state = with_answer_noted(replace(self._state, trainer=trainer, children=trainer.running), now)

    def _stop(self, reason: str, now: float) -> None:
        trainer = self._state.trainer
        if trainer is not None and trainer.stopping_since is None:
            if trainer.running:
                log(f"attempt {trainer.attempt}: stopping the trainer: {reason}")
            self._change_trainer(stopping_since=now)
        if self._process is not None:
            self._process.kill()

    def _abort(self, reason: str, now: float) -> None:
        if self._process is None:
            return
        log(f"hang: {reason}; asking for its stacks, then killing it")
        self._process.hung = True
        self._process.signal(signal.SIGABRT)
        self._change_trainer(aborting_since=now)

    def _forward_sigterm(self) -> None:
        if self._process is not None:
            self._process.signal(signal.SIGTERM)
        if self._state.termination is not None:
            termination = replace(self._state.termination, forwarded=True)
            self._state = replace(self._state, termination=termination)

    def _change_trainer(self, **changes: object) -> None:
        if self._state.trainer is not None:
            self._state = replace(self._state, trainer=replace(self._state.trainer, **changes))  # type: ignore[arg-type]

    def _publish(self, *, hold_seconds: float | None = None) -> None:
        now = time.monotonic()
        report = report_of(self._state, self._ledger.at(now), now)
        meaning = report.meaning()
        self._number += 1
        if meaning != self._meaning or hold_seconds is not None:
            self._meaning, self._urgent_number = meaning, self._number
        if hold_seconds is None:
            stepping = self._state.running is not None and self._state.running.stepped
            hold_seconds = STEPPING_HOLD_SECONDS if stepping else HOLD_SECONDS
        self._client.publish(PendingReport(report, self._number, self._urgent_number, hold_seconds), now)

    def _end(self, leave: reacting.Leave) -> int:
        """Deliver the last report if the operator can be reached, and leave a message for ``kubectl describe``."""
        if self._state.unreachable_since is None and leave.code != ExitCode.SUPERSEDED:
            self._publish(hold_seconds=0.0)
            self._slot.wait_delivered(self._number, FLUSH_SECONDS)
        log(f"ends with code {int(leave.code)}: {leave.reason}")
        if leave.code != ExitCode.DONE:
            end = self._state.trainer.exit if self._state.trainer else None
            summary = f"holdfast agent: {leave.reason} (code {int(leave.code)})"
            write_termination_log(self._settings.termination_log, summary, end.last_lines if end else "")
        with contextlib.suppress(OSError):
            self._socket.close()
        return int(leave.code)
