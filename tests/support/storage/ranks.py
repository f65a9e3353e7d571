"""Two ranks in one process, for what needs votes and no collective."""

from __future__ import annotations

from holdfast.distributed.coordination import LocalCoordination


class Rank(LocalCoordination):
    """One in-process store, seen as one of two ranks."""

    def __init__(self, shared: LocalCoordination, rank: int) -> None:
        self.__dict__ = dict(shared.__dict__)  # the same values and lock
        self.process_index, self.process_count = rank, 2
