"""Ports that are reserved for a program until it serves on them."""

from __future__ import annotations

import socket


def reserved_port() -> socket.socket:
    """A socket that is bound to a loopback port and does not listen. Closing it frees the port.

    Only a program of this user that shares ports (SO_REUSEPORT, as gRPC does) can serve on the port. The kernel does not
    choose it for anything else, not even as the near end of a connection. A free port that is not kept bound may be in use
    before the program binds it.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved
