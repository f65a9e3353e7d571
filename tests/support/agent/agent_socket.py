"""The agent's end of the socket, for tests: takes every update of one trainer and sends it commands."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast_contract import local
from holdfast_contract.local import AgentCommand, Hello, TrainerUpdate
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import SaveReport, SaveRequest


class AgentSocket:
    """Listens at ``path``; a trainer that connects again replaces the connection before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hello: Hello | None = None
        self.updates: list[TrainerUpdate] = []
        self.connections = 0
        self._changed = threading.Condition()
        self._connection: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def save(self, request_id: str, seconds_left: float, *, stop: bool = False) -> None:
        """Ask the trainer for a save."""
        self.send(AgentCommand(SaveRequest(request_id, seconds_left, stop)))

    def send(self, command: AgentCommand) -> None:
        """Send a command, as soon as a trainer is connected."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._connection is not None, 30.0), "no trainer connected"
            assert self._connection is not None
            self._connection.sendall(local.to_line(command))

    def wait_for(self, condition: Callable[[TrainerUpdate], bool], timeout_seconds: float = 30.0) -> TrainerUpdate:
        """The first update, from now or the last one, that meets the condition."""
        with self._changed:
            met = self._changed.wait_for(lambda: bool(self.updates) and condition(self.updates[-1]), timeout_seconds)
            assert met, f"not met within {timeout_seconds:g} s; last update: {self.updates[-1:]}"
            return self.updates[-1]

    def outcome(self, request_id: str, timeout_seconds: float = 30.0) -> SaveReport:
        """How a request ended."""

        def ended(update: TrainerUpdate) -> bool:
            return any(r.id == request_id and r.outcome is not SaveOutcome.PENDING for r in update.saves)

        update = self.wait_for(ended, timeout_seconds)
        return next(report for report in update.saves if report.id == request_id)

    def drop(self) -> None:
        """Close the connection, as an agent that restarts would."""
        with self._changed:
            if self._connection is not None:
                self._connection.shutdown(socket.SHUT_RDWR)
                self._connection = None

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        with contextlib.suppress(OSError):
            self.drop()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._read, args=[connection], daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                message = local.from_line(line)
                with self._changed:
                    if isinstance(message, Hello):
                        self.hello, self._connection = message, connection
                        self.connections += 1
                    elif isinstance(message, TrainerUpdate):
                        self.updates.append(message)
                    self._changed.notify_all()
