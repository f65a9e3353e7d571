"""One HTTPS connection to the operator. It verifies the Service's name at any address; another thread may cut it."""

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
    """There is no answer: connecting or TLS failed, or the connection broke or was cut."""


@dataclass(frozen=True)
class HttpAnswer:
    """The operator's answer. ``retry_after_seconds`` and ``leader`` come from headers and may be None and ""."""

    status: int
    body: bytes
    retry_after_seconds: float | None = None
    leader: str = ""


def client_context(ca_pem: str) -> ssl.SSLContext:
    """A TLS context that trusts this PEM bundle alone and checks the peer's name.

    Raises:
        ssl.SSLError, ValueError: ``ca_pem`` holds no certificates.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca_pem)
    return context


class Channel:
    """A kept-alive connection. One thread calls all methods but ``cut``, which any thread may call."""

    def __init__(self, context: ssl.SSLContext, server_name: str, address: tuple[str, int]) -> None:
        """Prepare a connection; ``open`` connects.

        Args:
            context: The TLS context that verifies the peer.
            server_name: The DNS name that the peer's certificate must carry.
            address: Host and port to connect to.
        """
        self._context, self._server_name, self._address = context, server_name, address
        self._lock = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None

    def open(self) -> bool:
        """Connect unless connected. True: the connection is new. Raises ChannelError."""
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
        connection.auto_open = 0  # it would reconnect by itself without TLS and reveal the token
        connection.sock = secure
        with self._lock:
            self._connection = connection
        return True

    def post(self, body: bytes, token: str, hold_seconds: float) -> HttpAnswer:
        """Send a report and wait for the answer.

        Args:
            body: The encoded report.
            token: The bearer token of this pod.
            hold_seconds: How long the operator may hold the request before it answers.

        Raises:
            ChannelError: there is no answer; the connection is closed.
        """
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
        except (
            OSError,
            ValueError,
            http.client.HTTPException,
        ) as error:  # ValueError: the token is no valid header value
            self.close()
            raise ChannelError(f"no answer from {self._place}: {error or type(error).__name__}") from None
        if connection.sock is None:  # the answer said "Connection: close"
            self.close()
        return answer

    def cut(self) -> None:
        """Make a ``post`` in progress fail at once."""
        with self._lock:
            sock = self._connection.sock if self._connection else None
            if isinstance(sock, socket.socket):
                with contextlib.suppress(OSError):
                    # SSLSocket.shutdown would also discard the TLS state while the reader uses it.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next ``open`` makes a new one."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.close()

    @property
    def _place(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"


def _read(response: http.client.HTTPResponse) -> HttpAnswer:
    body = response.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise http.client.HTTPException(f"the answer is longer than {MAX_BODY_BYTES} bytes")
    response.read()  # to the end of the body, so that the connection can be used again
    return HttpAnswer(
        status=response.status,
        body=body,
        retry_after_seconds=_seconds(response.getheader("Retry-After")),
        leader=response.getheader(LEADER_HEADER) or "",
    )


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else None


def address_of(text: str) -> tuple[str, int] | None:
    """``host:port`` (IPv6 in brackets) as (host, port); None if ``text`` is not an address."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host, int(port)
