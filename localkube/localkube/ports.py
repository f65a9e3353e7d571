"""Ports that are kept for a program until it serves on them."""

from __future__ import annotations

import socket


def reserved_port() -> socket.socket:
    """A loopback port that is bound, not listening, until the socket is closed.

    Only a program of this user that shares ports (SO_REUSEPORT, as gRPC does) can serve on it, and the kernel gives it to
    nobody who asks for any, not even as the near end of a connection. One that is only looked up and let go may be gone
    before the program binds it.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved
