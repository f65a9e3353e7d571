"""The port that tests give to JAX's coordinator."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from tests.support.training.coordinator import coordinator_address


def test_a_coordinators_port_is_nobody_elses_and_the_coordinator_can_share_it() -> None:
    with coordinator_address() as address:
        host, _, port = address.rpartition(":")
        in_use = os.strerror(errno.EADDRINUSE)
        with socket.socket() as stranger, pytest.raises(OSError, match=in_use) as refused:
            stranger.bind((host, int(port)))
        assert refused.value.errno == errno.EADDRINUSE
        with socket.socket() as coordinator:
            coordinator.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            coordinator.bind(("0.0.0.0", int(port)))  # as gRPC does
            coordinator.listen()
            socket.create_connection((host, int(port)), timeout=5).close()
