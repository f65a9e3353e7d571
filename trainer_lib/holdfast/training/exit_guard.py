"""The end of a process that holds something to finish, whichever way the end comes."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  its own hook at exit must be registered before ours, so that it runs later
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

TERMINATED: Final = 128 + signal.SIGTERM

log = logging.getLogger("holdfast")


class ExitGuard:
    """Calls ``finish`` before the interpreter ends, unless ``close`` came first; SIGTERM becomes SystemExit(143).

    The hook runs while threads may still be started: ``atexit`` is too late for that, and for a save in flight.
    A program's own handler of SIGTERM is left in place, and so is that of JAX where ``jax.distributed`` is in use.
    """

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self._closed = False
        self._undisturbed = 0
        self._terminated = False
        self._previous: Any = None
        before_threads_end: Any = getattr(threading, "_register_atexit", None)
        if before_threads_end is not None:
            before_threads_end(self._at_exit)

    def take_signal(self) -> None:
        """From now on SIGTERM ends the program in an orderly way. On another thread than the main one: no effect."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._previous = signal.signal(signal.SIGTERM, self._on_signal)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """A signal that arrives in this block takes effect at its end."""
        self._undisturbed += 1
        try:
            yield
        finally:
            self._undisturbed -= 1
            if self._terminated and not self._undisturbed:
                self._terminated = False
                raise SystemExit(TERMINATED)

    def close(self) -> None:
        """Nothing is left to finish; the signal is given back."""
        self._closed = True
        if self._previous is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        log.warning("SIGTERM: the save in flight is finished, then the process ends")
        self._terminated = True
        if not self._undisturbed:
            self._terminated = False
            raise SystemExit(TERMINATED)

    def _at_exit(self) -> None:
        if not self._closed:
            self._finish()
