"""How much memory a plan may use."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.remat.checks import require_fraction, require_int


@dataclass(frozen=True)
class BytesPerDevice:
    """A number of bytes on each device, for everything that the program holds besides its arguments and results."""

    count: int

    def __post_init__(self) -> None:
        require_int("bytes_per_device", self.count, minimum=1)

    def of(self, everything_bytes: float) -> float:  # noqa: ARG002  the same for every program
        """The limit in bytes per device. ``everything_bytes``: what the program takes without rematerialisation."""
        return float(self.count)


@dataclass(frozen=True)
class Fraction:
    """A share of what the program takes without rematerialisation."""

    share: float

    def __post_init__(self) -> None:
        require_fraction("fraction", self.share)

    def of(self, everything_bytes: float) -> float:
        """The limit in bytes per device. ``everything_bytes``: what the program takes without rematerialisation."""
        return self.share * everything_bytes


Budget = BytesPerDevice | Fraction


def bytes_per_device(count: int) -> BytesPerDevice:
    """At most ``count`` bytes on each device, besides arguments and results. Raises ValueError below 1."""
    return BytesPerDevice(count)


def fraction(share: float) -> Fraction:
    """At most this share of what the program takes without rematerialisation. Raises ValueError unless 0 < share <= 1."""
    return Fraction(share)


def require_budget(value: object) -> Budget:
    """The value. Raises TypeError unless it is a budget."""
    if not isinstance(value, BytesPerDevice | Fraction):
        raise TypeError(f"budget: found {value!r:.100}, allowed: bytes_per_device(count) or fraction(share)")
    return value


class DoesNotFit(ValueError):
    """No choice of kept values fits the budget. Bytes are per device; ``least_bytes`` is the smallest need found."""

    def __init__(self, budget_bytes: float, least_bytes: float, basis: str) -> None:
        self.budget_bytes, self.least_bytes = int(budget_bytes), int(least_bytes)
        super().__init__(
            f"budget: found {self.budget_bytes:,} bytes per device, allowed: {self.least_bytes:,} or more ({basis});"
            " smaller blocks, a smaller batch or more devices lower it"
        )
