"""A port for a JAX coordinator of a test, which nobody else gets in the meantime."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def coordinator_address() -> Iterator[str]:
    """``host:port`` on the loopback interface, kept for as long as this is open.

    A port that is only looked up and then let go may become another process's, even as the near end of a connection,
    before the coordinator binds it. This socket stays bound and does not listen: gRPC shares ports (SO_REUSEPORT), so
    the coordinator can bind beside it, and the kernel gives the port to nobody who asks for any.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{kept.getsockname()[1]}"
