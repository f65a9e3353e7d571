"""SIGTERM, noticed at once whatever the main thread waits for."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

SIGTERM_SECONDS: Final = 25.0
"""Seconds left after a SIGTERM that the agent did not announce: Kubernetes' default grace less the time to end."""

log = logging.getLogger("holdfast")


class TerminationSignal:
    """Calls ``received`` once, on a thread of its own, as soon as SIGTERM arrives.

    A Python signal handler would wait until the main thread comes out of the step that it waits for; the interpreter's
    wake-up file is written at once. Install it after ``jax.distributed.initialize``, which sets a handler of its own.
    """

    def __init__(self, received: Callable[[], None]) -> None:
        self._received = received
        self._reader, self._writer = socket.socketpair()
        self._previous: Any = None
        self._previous_fd = -1
        self._installed = False

    def install(self) -> None:
        """Take the signal; nothing happens outside the main thread, where Python cannot."""
        if threading.current_thread() is not threading.main_thread():
            log.info("SIGTERM is not handled: the session was not opened on the main thread")
            return
        self._writer.setblocking(False)
        threading.Thread(target=self._listen, name="holdfast-sigterm", daemon=True).start()
        self._previous = signal.signal(signal.SIGTERM, _noted_by_the_wakeup_file)
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._installed = True

    def restore(self) -> None:
        """Give the signal back."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._previous_fd)
            signal.signal(signal.SIGTERM, self._previous if self._previous is not None else signal.SIG_DFL)
            self._installed = False
        with contextlib.suppress(OSError):
            self._writer.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while numbers := self._reader.recv(64):
            if signal.SIGTERM in numbers:
                log.warning("SIGTERM: saving, then stopping (process %d)", os.getpid())
                self._received()


def _noted_by_the_wakeup_file(number: int, frame: FrameType | None) -> None:
    """Python writes the wake-up file only for signals that have a handler."""
