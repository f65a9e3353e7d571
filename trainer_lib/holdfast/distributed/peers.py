"""Learning at once that another rank has failed, instead of from a collective that never ends.

A rank that fails says so in the key-value store before it leaves. The others give their main thread a moment to meet
the error by itself, then leave too: a thread that waits in a collective can be ended in no other way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from holdfast.distributed.coordination import Coordination
from holdfast.errors import PeerLeft, PeerLost

MOMENT_SECONDS: Final = 2.0
"""How long the main thread may take to notice by itself."""
_WATCH_SECONDS: Final = 30.0
_KEY: Final = "session/left"
_TOGETHER: Final = "together"

log = logging.getLogger("holdfast")


class Peers:
    """Watches for a rank that leaves. ``abandoned`` is called on the watching thread, once, if the process is still
    there a moment later.
    """

    def __init__(self, coordination: Coordination, abandoned: Callable[[PeerLost], None]) -> None:
        self._coordination, self._abandoned = coordination, abandoned
        self._ending = threading.Event()

    def start(self) -> None:
        """Begin to watch, unless this process is alone."""
        if self._coordination.process_count > 1:
            threading.Thread(target=self._watch, name="holdfast-peers", daemon=True).start()

    def say_goodbye(self, error: BaseException) -> None:
        """Tell the others that this rank fails. Never raises."""
        self._ending.set()
        self._say(f"process {self._coordination.process_index} ended: {type(error).__name__}: {error}")

    def close(self) -> None:
        """All ranks end training together."""
        self._ending.set()
        self._say(_TOGETHER)

    def _say(self, words: str) -> None:
        if self._coordination.process_count == 1:
            return
        try:
            self._coordination.create(_KEY, words)
        except PeerLost as lost:
            log.debug("nobody was told: %s", lost)

    def _watch(self) -> None:
        while not self._ending.is_set():
            try:
                words = self._coordination.get(_KEY, _WATCH_SECONDS)
            except TimeoutError:
                continue
            except PeerLost as lost:
                words = str(lost)
            if words != _TOGETHER and not self._ending.wait(MOMENT_SECONDS):
                self._abandoned(PeerLeft(words))
            return
