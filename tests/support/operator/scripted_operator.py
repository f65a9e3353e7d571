"""A control endpoint that says what a test tells it to: real HTTPS, real long polls, strictly read reports."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import pydantic

from holdfast_contract import codec
from holdfast_contract.keys import SYNC_PATH
from holdfast_contract.sync import HOLD_SECONDS, LEADER_HEADER, MAX_BODY_BYTES, WAIT_HEADER, Action, Directive, Report

T = TypeVar("T")
_REPORT = pydantic.TypeAdapter(Report)


@dataclass
class Refusal:
    """An answer other than the directive: status, body and headers."""

    status: HTTPStatus
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class ScriptedOperator:
    """Serves until closed. ``reports`` is everything heard, in order."""

    def __init__(self, context: ssl.SSLContext, *, port: int = 0) -> None:
        self.changed = threading.Condition()
        self.reports: list[Report] = []
        self.requests: list[tuple[HTTPStatus, str]] = []  # answered status, token
        self.arrivals: list[float] = []  # when each request came, on the monotonic clock
        self.tokens = {"first-token"}
        self.refusal: Refusal | None = None
        self.max_body_bytes = MAX_BODY_BYTES
        self.connections = 0
        self.faults: list[str] = []  # reports that break the contract
        self._directive = Directive(Action.WAIT, 0)
        self._closed = False
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _handler(self, context))
        self._server.daemon_threads = True
        self._sockets: set[Any] = set()
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def direct(self, directive: Directive) -> None:
        """From now on this is the desired state."""
        with self.changed:
            self._directive = directive
            self.changed.notify_all()

    def refuse(self, refusal: Refusal | None) -> None:
        """Answer every request like this; None: with the directive again."""
        with self.changed:
            self.refusal = refusal
            self.changed.notify_all()

    def wait_report(self, wanted: Callable[[Report], bool], seconds: float = 15.0) -> Report:
        """The newest report once it is as wanted."""
        return self.wait(lambda: self.reports[-1] if self.reports and wanted(self.reports[-1]) else None, seconds)

    def wait(self, look: Callable[[], T | None], seconds: float = 15.0) -> T:
        """What ``look`` returns once that is something; it is asked whenever a request came."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while (found := look()) is None:
                left = deadline - time.monotonic()
                last = self.reports[-1] if self.reports else None
                assert left > 0, f"not seen within {seconds} s; last report: {last}; answers: {self.requests[-5:]}"
                self.changed.wait(min(left, 0.1))
        return found

    def answer(self, token: str, body: bytes, hold_seconds: float) -> Refusal:
        """What one request gets."""
        if self.refusal is not None:
            return self.refusal
        if token not in self.tokens:
            return Refusal(HTTPStatus.UNAUTHORIZED, b"token unknown")
        if len(body) > self.max_body_bytes:
            return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"too large")
        try:
            report = _REPORT.validate_json(body)
        except pydantic.ValidationError as error:
            self.faults.append(str(error))
            return Refusal(HTTPStatus.BAD_REQUEST, b"malformed")
        self.reports.append(report)
        self.changed.notify_all()
        self.changed.wait_for(
            lambda: self._directive.tag != report.obeys or self.refusal is not None or self._closed, hold_seconds
        )
        status = HTTPStatus.FORBIDDEN if self._directive.action is Action.EXIT else HTTPStatus.OK
        return self.refusal or Refusal(status, codec.encode(self._directive))

    def close(self) -> None:
        """Stop: nobody answers at this port any more, and open connections end."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        with self.changed:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _handler(operator: ScriptedOperator, context: ssl.SSLContext) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # head and body in one piece

        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True)
            with operator.changed:
                operator.connections += 1
                operator._sockets.add(self.request)
            super().setup()

        def do_POST(self) -> None:
            assert self.path == SYNC_PATH, self.path
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:  # cut by the agent while it was sending
                self.close_connection = True
                return
            token = self.headers["Authorization"].removeprefix("Bearer ")
            hold = float(self.headers.get(WAIT_HEADER, HOLD_SECONDS))
            with operator.changed:
                operator.arrivals.append(time.monotonic())
                said = operator.answer(token, body, hold)
                operator.requests.append((said.status, token))
                operator.changed.notify_all()
            self.send_response(said.status)
            self.send_header("Content-Length", str(len(said.body)))
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, *_: object) -> None:
            """Tests read what was answered from ``requests``."""

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # the agent cut the poll, as it may
                return

    class Quiet(Handler):
        def __init__(self, *args: Any) -> None:
            try:
                super().__init__(*args)
            except OSError:  # a peer that does not trust us breaks off the handshake
                return

    return Quiet


def leader_elsewhere(place: str, *, in_header: bool) -> Refusal:
    """What a standby answers."""
    if in_header:
        return Refusal(HTTPStatus.MISDIRECTED_REQUEST, b"", {LEADER_HEADER: place})
    return Refusal(HTTPStatus.MISDIRECTED_REQUEST, codec.encode(Directive(Action.WAIT, 0, leader=place)))
