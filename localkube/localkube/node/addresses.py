"""Loopback addresses for nodes, pods and Services, unique on this machine.

Each address is claimed by an abstract Unix socket of its name: the kernel keeps two processes from holding the same
one, frees it when its holder dies, and leaves no file behind. Its scope is the network namespace, as the addresses' is.
"""

import random
import socket
from types import TracebackType
from typing import Self

FIRST, LAST = 0x7F40_0000, 0x7FBF_FFFF  # 127.64.0.0 to 127.191.255.255: away from 127.0.0.1 and 127.0.1.1
TRIES = 1000


class AddressClaim:
    """One claimed address, free again after `release` or the end of the process."""

    def __init__(self, address: str, lock: socket.socket) -> None:
        self.address = address
        self._lock = lock

    def release(self) -> None:
        """Give the address back."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def claim() -> AddressClaim:
    """Claim a free address. Raises OSError if none is found."""
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
