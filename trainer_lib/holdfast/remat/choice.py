"""What one region keeps, and its cost in bytes and FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.remat.graph import Graph


@dataclass(frozen=True)
class RegionChoice:
    """What a region keeps: the values named in ``keep``; None for everything, without rematerialisation.

    ``kept_bytes``: held from the forward to the backward pass. ``working_bytes``: recomputed values that are held while the
    backward pass of one repeat runs. ``flops``: recomputed in all repeats.
    """

    keep: frozenset[str] | None
    kept_bytes: int
    working_bytes: int
    flops: int

    @property
    def total_bytes(self) -> int:
        """Kept and working bytes."""
        return self.kept_bytes + self.working_bytes


def everything_of(graph: Graph) -> RegionChoice:
    """The choice that keeps everything."""
    return RegionChoice(None, graph.everything_bytes, 0, 0)


def outcome(graph: Graph, keep: frozenset[int]) -> RegionChoice:
    """The choice that keeps these values, by index, and the inputs that are then needed."""
    available, again = _replayed(graph, keep)
    kept = sum(graph.values[i].kept_bytes for i in available if i in keep or graph.values[i].producer is None)
    working = sum(graph.values[i].single_bytes for i in graph.needed if i not in keep and not is_input(graph, i))
    labels = frozenset(str(graph.values[i].label) for i in keep & available)
    flops = sum(graph.operations[o].flops for o in again)
    return RegionChoice(labels, kept, working, flops)


def _replayed(graph: Graph, keep: frozenset[int]) -> tuple[set[int], set[int]]:
    """Values that are read, and operations that run again, when the backward pass starts from ``keep``."""
    available: set[int] = set()
    again: set[int] = set()
    waiting = list(graph.needed)
    while waiting:
        index = waiting.pop()
        if index in available:
            continue
        available.add(index)
        producer = graph.values[index].producer
        if index not in keep and producer is not None and producer not in again:
            again.add(producer)
            waiting.extend(graph.operations[producer].inputs)
    return available, again


def is_input(graph: Graph, index: int) -> bool:
    """Whether a value is an input of its region."""
    return graph.values[index].producer is None
