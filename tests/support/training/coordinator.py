"""A port for a JAX coordinator of a test, which nobody else gets in the meantime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from localkube.ports import reserved_port


@contextlib.contextmanager
def coordinator_address() -> Iterator[str]:
    """``host:port`` on the loopback interface, kept for as long as this is open."""
    with reserved_port() as kept:
        host, port = kept.getsockname()
        yield f"{host}:{port}"
