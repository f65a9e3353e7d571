"""One HTTPS connection to the operator: the Service's TLS name whatever the address, cut from another thread."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import Final

from holdfast_contract.keys import SYNC_PATH
from holdfast_contract.sync import HOLD_SECONDS, LEADER_HEADER, MAX_BODY_BYTES, REQUEST_TIMEOUT_SECONDS, WAIT_HEADER

CONNECT_SECONDS: Final = 5.0


class ChannelError(Exception):
    """No answer could be had: the address, the TLS peer or the connection failed, or it was cut."""


@dataclass(frozen=True)
class Answer:
    """What came back. ``retry_after_seconds`` and ``leader`` are from the headers, None and "" if absent or odd."""

    status: int
    body: bytes
    retry_after_seconds: float | None = None
    leader: str = ""


def client_context(ca_pem: str) -> ssl.SSLContext:
    """TLS that trusts this bundle alone and checks the peer's name. Raises ssl.SSLError, ValueError: not a bundle."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca_pem)
    return context


class Channel:
    """A kept-alive connection. ``post`` belongs to one thread; ``cut`` may be called from any."""

    def __init__(self, context: ssl.SSLContext, server_name: str, address: tuple[str, int]) -> None:
        self._context, self._server_name, self._address = context, server_name, address
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None

    def open(self) -> bool:
        """Connect unless connected; whether the connection is a new one. Raises ChannelError."""
        if self._connection is not None:
            return False
        try:
            raw = socket.create_connection(self._address, timeout=CONNECT_SECONDS)
        except OSError as error:
            raise ChannelError(f"cannot connect to {self._place}: {error}") from None
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secure = self._context.wrap_socket(raw, server_hostname=self._server_name)
        except OSError as error:  # ssl.SSLError is one
            raw.close()
            raise ChannelError(f"no trusted TLS peer {self._server_name!r} at {self._place}: {error}") from None
        connection = http.client.HTTPConnection(self._server_name, self._address[1])
        connection.auto_open = 0  # it would connect by itself without TLS and hand out the token
        connection.sock = secure
        with self._lock:
            self._connection = connection
        return True

    def post(self, body: bytes, token: str, hold_seconds: float) -> Answer:
        """Send a report and wait for the answer. Raises ChannelError; the connection is then closed."""
        connection = self._connection
        if connection is None or connection.sock is None:
            self.close()
            raise ChannelError(f"not connected to {self._place}")
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            WAIT_HEADER: f"{hold_seconds:g}",
        }
        try:
            connection.sock.settimeout(hold_seconds + REQUEST_TIMEOUT_SECONDS - HOLD_SECONDS)
            connection.request("POST", SYNC_PATH, body=body, headers=headers)
            answer = _read(connection.getresponse())
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: a token that is no header value
            self.close()
            raise ChannelError(f"no answer from {self._place}: {error or type(error).__name__}") from None
        if connection.sock is None:  # the operator asked for the connection to end with this answer
            self.close()
        return answer

    def cut(self) -> None:
        """Make a ``post`` that is under way fail at once."""
        with self._lock:
            sock = self._connection.sock if self._connection else None
            if isinstance(sock, socket.socket):
                with contextlib.suppress(OSError):
                    # SSLSocket.shutdown would also take the TLS state away under the reader.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Forget the connection; the next ``open`` makes a new one."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.close()

    @property
    def _place(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"


def _read(response: http.client.HTTPResponse) -> Answer:
    body = response.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise http.client.HTTPException(f"the answer is longer than {MAX_BODY_BYTES} bytes")
    response.read()  # the end of the body lets the connection be used again
    return Answer(
        status=response.status,
        body=body,
        retry_after_seconds=_seconds(response.getheader("Retry-After")),
        leader=response.getheader(LEADER_HEADER) or "",
    )


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else None


def address_of(text: str) -> tuple[str, int] | None:
    """``host:port`` (IPv6 in brackets) as a pair, None if it is not one."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host, int(port)
