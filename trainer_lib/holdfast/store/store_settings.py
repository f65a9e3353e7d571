"""Deadlines of the store, its writer, and the pin that binds nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

WriterName = Literal["direct", "orbax"]
WRITERS: Final[tuple[WriterName, ...]] = get_args(WriterName)


def require_yes_or_no(name: str, value: object) -> None:
    """Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: found {value!r}, allowed: True | False")  # noqa: TRY004  as every setting here


def require_writer(found: object) -> None:
    """Raises ValueError unless it names a writer."""
    if found not in WRITERS:
        raise ValueError(f"writer: found {found!r}, allowed: {' | '.join(map(repr, WRITERS))}")


class Unpinned:
    """The type of UNPINNED."""

    def __repr__(self) -> str:
        return "UNPINNED"


UNPINNED: Final = Unpinned()
"""Pin for use without an operator: the newest valid candidate, whatever it is."""


@dataclass(frozen=True)
class StoreSettings:
    """Limits of everything that the store waits for, in seconds; and who writes."""

    save_seconds: float = 1000.0  # from the call of save to its commit
    settle_seconds: float = 30.0  # how long a commit that was decided in time may take to be known
    claim_seconds: float = 60.0  # claiming the run, and every rank proving that it can write there
    restore_seconds: float = 1800.0  # choosing, verifying and loading
    transient_seconds: float = 60.0  # how long an error that may pass (EIO, ESTALE ...) is retried on reading
    visible_seconds: float = 10.0  # how long one rank's file may take to appear on another (attribute caches)
    io_threads: int = 4  # per process, for digests
    writer: WriterName = "direct"  # "direct": past the page cache, Orbax for what that cannot hold; "orbax": always
    check_saves: bool = False  # read array data back before a save is valid, and compare it with memory
    poison_after: int = 0  # skip a checkpoint from which so many attempts went on and came to nothing; 0: never

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "writer":
                require_writer(value)
            elif field.name == "check_saves":
                require_yes_or_no("check_saves", value)
            elif field.name == "poison_after":
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    raise ValueError(f"poison_after: found {value!r}, allowed: a whole number of 0 or more")
            elif not value > 0:
                raise ValueError(f"{field.name}: found {value!r}, allowed: more than 0")
