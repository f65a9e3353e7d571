"""Deadlines of the store, its writer, and the pin that allows every checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

WriterName = Literal["direct", "orbax"]
WRITERS: Final[tuple[WriterName, ...]] = get_args(WriterName)


def require_yes_or_no(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is a bool."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}: found {value!r}, allowed: True | False")  # noqa: TRY004  as every setting here


def require_writer(found: object) -> None:
    """Raise ValueError unless ``found`` names a writer."""
    if found not in WRITERS:
        raise ValueError(f"writer: found {found!r}, allowed: {' | '.join(map(repr, WRITERS))}")


class Unpinned:
    """The type of UNPINNED."""

    def __repr__(self) -> str:
        return "UNPINNED"


UNPINNED: Final = Unpinned()
"""The pin without an operator: the newest valid checkpoint, without an upper bound."""


@dataclass(frozen=True)
class StoreSettings:
    """Limits in seconds of everything that the store waits for, and how it writes."""

    save_seconds: float = 1000.0  # from the call of save to its commit
    settle_seconds: float = 30.0  # time for a commit decided in time to reach all ranks
    claim_seconds: float = 60.0  # claiming the run, and proof that every rank can write there
    restore_seconds: float = 1800.0  # choosing, verifying and loading
    transient_seconds: float = 60.0  # how long a transient error (EIO, ESTALE ...) is retried when reading
    visible_seconds: float = 10.0  # time for one rank's file to appear whole on another (attribute caches)
    io_threads: int = 4  # per process, for digests
    writer: WriterName = "direct"  # "direct": past the page cache, Orbax for what it cannot write; "orbax": always
    check_saves: bool = False  # read array data back and compare it with memory before a save is valid
    poison_after: int = 0  # skip a checkpoint from which this many attempts continued without saving one; 0: never

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
