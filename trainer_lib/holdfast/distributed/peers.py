"""Detecting at once that another rank has failed, instead of waiting in a collective that never ends.

A rank that fails writes so into the key-value store before it leaves. Each other rank gives its main thread a moment to
raise the error itself, then leaves too: nothing else can end a thread that waits in a collective.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from holdfast.distributed.coordination import Coordination
from holdfast.errors import PeerLeft, PeerLost

MOMENT_SECONDS: Final = 2.0
"""How long the main thread may take to notice the failure itself."""
_WATCH_SECONDS: Final = 30.0
_KEY: Final = "session/left"
_TOGETHER: Final = "together"

log = logging.getLogger("holdfast")


class Peers:
    """Watches for a rank that leaves. ``abandoned`` is called once, on the watching thread, if this process is still
    running MOMENT_SECONDS later.
    """

    def __init__(self, coordination: Coordination, abandoned: Callable[[PeerLost], None]) -> None:
        self._coordination, self._abandoned = coordination, abandoned
        self._ending = threading.Event()

    def start(self) -> None:
        """Begin to watch, unless this is the only process."""
        if self._coordination.process_count > 1:
            threading.Thread(target=self._watch, name="holdfast-peers", daemon=True).start()

    def report_failure(self, error: BaseException) -> None:
        """Report to the other ranks that this rank fails. Never raises."""
        self._ending.set()
        self._publish(f"process {self._coordination.process_index} ended: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Report that all ranks end training together."""
        self._ending.set()
        self._publish(_TOGETHER)

    def _publish(self, text: str) -> None:
        if self._coordination.process_count == 1:
            return
        try:
            self._coordination.create(_KEY, text)
        except PeerLost as lost:
            log.debug("the other processes could not be notified: %s", lost)

    def _watch(self) -> None:
        while not self._ending.is_set():
            try:
                text = self._coordination.get(_KEY, _WATCH_SECONDS)
            except TimeoutError:
                continue
            except PeerLost as lost:
                text = str(lost)
            if text != _TOGETHER and not self._ending.wait(MOMENT_SECONDS):
                self._abandoned(PeerLeft(text))
            return
