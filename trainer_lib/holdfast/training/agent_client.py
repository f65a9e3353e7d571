"""The library's end of the socket to the agent: sends this process's whole state, receives save requests.

Losing the agent never holds up training: everything happens on one background thread, and it reconnects for ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast_contract import codec, local
from holdfast_contract.local import AgentCommand, Hello, TrainerUpdate

MIN_INTERVAL_SECONDS: Final = 0.1
"""Changes closer together than this go out in one update."""
MAX_INTERVAL_SECONDS: Final = 1.0
"""An update goes out at least this often: progress and goodput change all the time."""
SEND_SECONDS: Final = 5.0
RECONNECT_SECONDS: Final = (0.05, 2.0)
"""First and longest pause between attempts to connect."""

log = logging.getLogger("holdfast")


class AgentClient:
    """One connection to the agent, kept up. ``update`` and ``command`` are called on the background thread."""

    def __init__(
        self, path: Path, attempt: int, *, update: Callable[[], TrainerUpdate], command: Callable[[AgentCommand], None]
    ) -> None:
        self._path, self._attempt = path, attempt
        self._update, self._command = update, command
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._flush = threading.Condition()
        self._asked = self._sent = 0
        self._closing = False
        self._complained = False
        self._thread = threading.Thread(target=self._run, name="holdfast-agent", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def notify(self) -> None:
        """Something worth telling soon has changed. Never blocks."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_writer.send(b"!")

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until the agent's socket holds an update that was gathered after this call; False if it does not."""
        with self._flush:
            self._asked += 1
            mine = self._asked
            self.notify()
            return self._flush.wait_for(lambda: self._sent >= mine, timeout_seconds)

    def close(self, timeout_seconds: float = 1.0) -> None:
        """End the connection."""
        self._closing = True
        self.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        pause, longest = RECONNECT_SECONDS
        while not self._closing:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.settimeout(SEND_SECONDS)
                    connection.connect(os.fspath(self._path))
                    connection.sendall(local.to_line(Hello(self._attempt, os.getpid())))
                    pause = RECONNECT_SECONDS[0]
                    self._serve(connection)
            except OSError as error:
                log.debug("agent at %s: %s", self._path, error)
            except Exception:
                log.exception("the connection to the agent failed")
            if not self._closing:
                time.sleep(pause)
                pause = min(longest, 2 * pause)

    def _serve(self, connection: socket.socket) -> None:
        received = b""
        last = float("-inf")
        dirty = True
        while not self._closing or dirty:
            due = last + (MIN_INTERVAL_SECONDS if dirty else MAX_INTERVAL_SECONDS)
            readable, _, _ = select.select([connection, self._wake_reader], [], [], max(0.0, due - time.monotonic()))
            if self._wake_reader in readable:
                self._drain()
                dirty = True
            if connection in readable:
                data = connection.recv(local.MAX_LINE_BYTES)
                if not data:
                    raise ConnectionError("the agent closed the connection")
                received = self._take_lines(received + data)
            if time.monotonic() >= due or self._flush_wanted():
                self._send(connection)
                last, dirty = time.monotonic(), False

    def _send(self, connection: socket.socket) -> None:
        with self._flush:
            asked = self._asked
        update = self._gathered()
        if update is None:
            return
        connection.sendall(local.to_line(update))
        with self._flush:
            self._sent = asked
            self._flush.notify_all()

    def _gathered(self) -> TrainerUpdate | None:
        """The present state; None if it cannot be gathered now, which is logged once and costs no connection."""
        try:
            return self._update()
        except Exception:  # whatever the program's own values raise
            if not self._complained:
                log.exception("the report to the agent cannot be gathered; this is logged once")
            self._complained = True
            return None

    def _flush_wanted(self) -> bool:
        return self._asked > self._sent

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_reader.recv(4096):
                pass

    def _take_lines(self, data: bytes) -> bytes:
        """Handle every whole line; returns the rest. Raises ConnectionError for a line without end."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            try:
                message = local.from_line(line)
            except codec.CodecError as error:
                log.warning("the agent sent a line that cannot be read: %s", error)
                continue
            if isinstance(message, AgentCommand):
                self._command(message)
        if len(rest) > local.MAX_LINE_BYTES:
            raise ConnectionError(f"a line of more than {local.MAX_LINE_BYTES} bytes")
        return rest
