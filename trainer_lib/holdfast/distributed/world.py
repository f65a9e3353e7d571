"""The processes that train together, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigurationError


@dataclass(frozen=True)
class World:
    """The processes that train together. ``coordinator``: host:port where process 0 serves; "" for one process.

    ``bind``: the address that process 0 listens on, if it differs from all interfaces.
    """

    process_count: int = 1
    process_index: int = 0
    coordinator: str = ""
    bind: str = ""

    def __post_init__(self) -> None:
        if self.process_count < 1:
            raise ConfigurationError(f"world.process_count: found {self.process_count}, allowed: 1 or more")
        if not 0 <= self.process_index < self.process_count:
            allowed = f"0 to {self.process_count - 1}"
            raise ConfigurationError(f"world.process_index: found {self.process_index}, allowed: {allowed}")
        host, _, port = self.coordinator.rpartition(":")
        if self.process_count > 1 and not (host and port.isdecimal()):
            raise ConfigurationError(f"world.coordinator: found {self.coordinator!r}, allowed: host:port")
