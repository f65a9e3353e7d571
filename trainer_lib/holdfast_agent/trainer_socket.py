"""The unix socket over which the current attempt's trainer reports and receives save requests: one connection."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Final

from holdfast_agent import loop_events
from holdfast_agent.container_output import log
from holdfast_contract.codec import CodecError
from holdfast_contract.local import MAX_LINE_BYTES, AgentCommand, Hello, TrainerUpdate, from_line, to_line

HELLO_SECONDS: Final = 5.0
"""How long a new connection may take to send its Hello."""
MAX_COMPLAINTS: Final = 5
"""How many malformed lines of one connection are logged."""


class TrainerSocket:
    """Listens as soon as it is created. Only the loop's thread calls its methods."""

    def __init__(self, path: str, post: Callable[[loop_events.Event], None]) -> None:
        """Listen at ``path`` and post an event for each message. Raises OSError: the directory cannot be used."""
        self._path, self._post = path, post
        self._lock = threading.Lock()
        self._attempt = 0
        self._connection: socket.socket | None = None
        self._served = 0  # connections accepted and not yet ended
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # left by an earlier agent in the same pod volume
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(4)
        threading.Thread(target=self._accept, name="trainer-socket", daemon=True).start()

    def expect(self, attempt: int) -> None:
        """From now on accept only a trainer of this attempt, and drop the connection of an older one."""
        with self._lock:
            self._attempt = attempt
            old, self._connection = self._connection, None
        if old is not None:
            with contextlib.suppress(OSError):
                old.shutdown(socket.SHUT_RDWR)

    def send(self, command: AgentCommand) -> bool:
        """Send a command to the connected trainer without ever blocking.

        Returns:
            False if no trainer is connected, or if it does not read; then its connection is dropped.
        """
        with self._lock:
            connection = self._connection
        if connection is None:
            return False
        line = to_line(command)
        try:
            whole = connection.send(line, socket.MSG_DONTWAIT) == len(line)
        except OSError:
            whole = False
        if not whole:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return whole

    def close(self) -> None:
        """Stop listening and remove the socket's file."""
        self.expect(0)
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    @property
    def drained(self) -> bool:
        """Whether everything that was sent before now has reached the loop's queue."""
        with self._lock:
            return self._served == 0 and not select.select([self._listener], [], [], 0)[0]

    def _accept(self) -> None:
        try:
            while True:
                select.select([self._listener], [], [])
                # Both under the lock, so that every connection is either waiting or counted.
                with self._lock:
                    connection, _ = self._listener.accept()
                    self._served += 1
                threading.Thread(target=self._serve, args=(connection,), name="trainer", daemon=True).start()
        except (OSError, ValueError):  # closed
            return

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                hello = self._read_hello(connection)
                if hello is not None and self._admit(connection, hello):
                    self._serve_admitted(connection, hello.attempt)
        finally:
            with self._lock:
                self._served -= 1

    def _admit(self, connection: socket.socket, hello: Hello) -> bool:
        with self._lock:
            admitted = hello.attempt == self._attempt and self._connection is None
            if admitted:
                self._connection = connection
        if not admitted:
            log(f"refused a connection of process {hello.pid} for attempt {hello.attempt}: another one is served")
        return admitted

    def _serve_admitted(self, connection: socket.socket, attempt: int) -> None:
        self._post(loop_events.Connected(attempt))
        try:
            self._receive(connection, attempt)
        finally:
            with self._lock:
                if self._connection is connection:
                    self._connection = None
            self._post(loop_events.Disconnected(attempt))

    @staticmethod
    def _read_hello(connection: socket.socket) -> Hello | None:
        connection.settimeout(HELLO_SECONDS)
        line = b""
        try:
            while not line.endswith(b"\n") and len(line) < 1024:
                byte = connection.recv(1)  # no more than the line: what follows belongs to the next reader
                if not byte:
                    return None
                line += byte
            message = from_line(line)
        except (OSError, CodecError) as error:
            log(f"dropped a connection without a valid first line: {error}")
            return None
        connection.settimeout(None)
        if isinstance(message, Hello):
            return message
        log(f"dropped a connection: its first line is a {type(message).__name__}, allowed: Hello")
        return None

    def _receive(self, connection: socket.socket, attempt: int) -> None:
        complaints = 0
        with contextlib.suppress(OSError), connection.makefile("rb") as lines:
            while line := lines.readline(MAX_LINE_BYTES + 1):
                problem = _oversized(line, lines) or self._post_line(line, attempt)
                if problem and complaints < MAX_COMPLAINTS:
                    complaints += 1
                    log(f"ignored a line of the trainer of attempt {attempt}: {problem}")

    def _post_line(self, line: bytes, attempt: int) -> str:
        """Post the update in a line. What is wrong with the line; "" if nothing is."""
        try:
            message = from_line(line)
        except CodecError as error:
            return str(error)
        if not isinstance(message, TrainerUpdate):
            return f"found a {type(message).__name__}, allowed: TrainerUpdate"
        self._post(loop_events.Updated(attempt, message))
        return ""


def _oversized(line: bytes, lines: socket.SocketIO | object) -> str:
    """Skip the rest of a line that is too long. What is wrong with the line; "" if it is not too long."""
    if len(line) <= MAX_LINE_BYTES:
        return ""
    while line and not line.endswith(b"\n"):
        line = lines.readline(MAX_LINE_BYTES)  # type: ignore[union-attr]
    return f"longer than {MAX_LINE_BYTES} bytes"
