"""Loopback addresses for nodes, pods and Services, unique on this machine.

A process claims an address with an abstract Unix socket of that name. The kernel allows one holder at a time, frees the
name when the holder dies, and needs no file. Like the addresses, the names are those of one network namespace.
"""

import random
import socket
from types import TracebackType
from typing import Self

FIRST, LAST = 0x7F40_0000, 0x7FBF_FFFF  # 127.64.0.0 to 127.191.255.255: away from 127.0.0.1 and 127.0.1.1
TRIES = 1000


class AddressClaim:
    """A claimed address. `release` frees it, and so does the end of the process."""

    def __init__(self, address: str, lock: socket.socket) -> None:
        self.address = address
        self._lock = lock

    def release(self) -> None:
        """Free the address."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def claim() -> AddressClaim:
    """Claim a free address. Raises OSError if it finds none."""
    for _ in range(TRIES):
        number = random.randint(FIRST, LAST)
        if number & 0xFF in (0, 255):
            continue
        address = socket.inet_ntoa(number.to_bytes(4, "big"))
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            lock.bind(f"\0localkube/{address}")
        except OSError:
            lock.close()
            continue
        return AddressClaim(address, lock)
    raise OSError(f"no free loopback address after {TRIES} tries")
