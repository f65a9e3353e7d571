"""The health checks that the kubelet calls. A thread answers them, so that a stuck event loop is noticed, too."""

from __future__ import annotations

import asyncio
import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

STALL_SECONDS: Final = 20.0
"""An event loop that has not run for this time is stuck: no work here holds it that long."""
BEAT_SECONDS: Final = 1.0
REQUEST_SECONDS: Final = 5.0


class HealthServer:
    """Serves /healthz and /readyz over plain HTTP."""

    def __init__(
        self,
        *,
        problems: Callable[[], list[str]],
        ready: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; ``start`` listens. The callbacks are called in threads.

        Args:
            problems: reasons to restart this process; empty if there are none.
            ready: whether this replica serves.
            clock: monotonic seconds.
        """
        self._problems, self._ready, self._clock = problems, ready, clock
        self._beat = clock()
        self._dumped = False
        self._server: ThreadingHTTPServer | None = None

    async def beat(self) -> None:
        """Prove again and again that the event loop runs, until cancelled."""
        while True:
            self._beat = self._clock()
            self._dumped = False
            await asyncio.sleep(BEAT_SECONDS)

    def alive(self) -> tuple[bool, str]:
        """Whether the process is healthy, and what is wrong otherwise."""
        problems = list(self._problems())
        stalled_seconds = self._clock() - self._beat
        if stalled_seconds > STALL_SECONDS:
            problems.append(f"the event loop has not run for {stalled_seconds:.0f} s")
            self._dump_stacks()
        return not problems, "; ".join(problems) or "ok"

    def ready(self) -> tuple[bool, str]:
        """Whether this replica serves, as leader or as standby."""
        return (True, "ok") if self._ready() else (False, "starting")

    def start(self, host: str | None, port: int) -> int:
        """Serve in threads. Returns the port that is bound. Raises OSError."""
        self._server = ThreadingHTTPServer((host or "", port), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()
        return int(self._server.server_port)

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _dump_stacks(self) -> None:
        """Write every thread's stack to the log, once per stall, before the kubelet kills the container."""
        if not self._dumped:
            self._dumped = True
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)


def _handler(health: HealthServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers /healthz and /readyz."""

        timeout = REQUEST_SECONDS
        server_version = "holdfast"
        sys_version = ""

        def do_GET(self) -> None:
            """Send 200 or 503 with the check's text."""
            checks = {"/healthz": health.alive, "/readyz": health.ready}
            check = checks.get(self.path.partition("?")[0])
            good, text = check() if check is not None else (False, "allowed: /healthz, /readyz")
            body = text.encode() + b"\n"
            self.send_response(404 if check is None else 200 if good else 503)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
            """Do not log probes."""

    return Handler
