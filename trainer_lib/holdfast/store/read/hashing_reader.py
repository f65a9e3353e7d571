"""One pass over a checkpoint's file that hashes every byte and puts requested spans into their target memory."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from holdfast.store.format.regular import fill, opened

_BLOCK_BYTES: Final = 1024 * 1024
"""Small enough to be in the processor's cache still when it is hashed."""


@dataclass(frozen=True)
class ReadSpan:
    """A range of a file to read: ``length`` bytes at ``offset``.

    ``make`` returns the memory for them when reading begins; ``finish`` is called once they are in it. Both are called
    again when a read is repeated.
    """

    offset: int
    length: int
    make: Callable[[], memoryview]
    finish: Callable[[memoryview], None] | None = None

    @property
    def stop(self) -> int:
        """Offset of the first byte after the span."""
        return self.offset + self.length


def read_spans(path: Path, size: int, spans: Sequence[ReadSpan], *, threads: int, whole: bool) -> str:
    """Fill the spans, and hash the file on the way.

    Args:
        path: a regular file.
        size: its length in bytes.
        spans: in ascending order, without overlap.
        threads: how many read at once; hashing stays in the file's order.
        whole: read and hash all bytes; otherwise read the spans alone.

    Returns:
        The file's xxh3-128 digest in hexadecimal; "" unless ``whole``.

    Raises:
        OSError: storage does not answer, or the file is not a regular one.
        EOFError: the file is shorter than ``size``.
    """
    return _Pass(path, size, spans, whole=whole).run(threads)


class _Pass:
    """Threads take blocks in the file's order. Each reads its block, then waits for its turn to hash it."""

    def __init__(self, path: Path, size: int, spans: Sequence[ReadSpan], *, whole: bool) -> None:
        self._path, self._spans, self._whole = path, spans, whole
        self._starts = [span.offset for span in spans]
        self._blocks = iter(enumerate(_blocks([(0, size)] if whole else [(p.offset, p.stop) for p in spans])))
        self._hasher = xxhash.xxh3_128()
        self._turn = threading.Condition()
        self._lock = threading.Lock()
        self._hashed = 0
        self._failed = False
        self._memory: dict[int, memoryview] = {}
        self._missing = [span.length for span in spans]

    def run(self, threads: int) -> str:
        with opened(self._path) as fd:
            if threads < 2:
                self._work(fd)
            else:
                with ThreadPoolExecutor(threads, thread_name_prefix="holdfast-read") as pool:
                    for done in [pool.submit(self._work, fd) for _ in range(threads)]:
                        done.result()
        return self._hasher.hexdigest() if self._whole else ""

    def _work(self, fd: int) -> None:
        scratch = memoryview(bytearray(_BLOCK_BYTES))
        try:
            while not self._failed:
                with self._lock:
                    block = next(self._blocks, None)
                if block is None:
                    return
                number, (start, stop) = block
                parts = self._parts(start, stop, scratch)
                fill(fd, [view for _, view in parts], start, self._path)
                if self._whole:
                    self._hash(number, [view for _, view in parts])
                self._finish(parts)
        except BaseException:
            with self._turn:
                self._failed = True
                self._turn.notify_all()
            raise

    def _parts(self, start: int, stop: int, scratch: memoryview) -> list[tuple[int, memoryview]]:
        """(number of a span or -1, memory to read into) for every byte of the block, in order."""
        parts: list[tuple[int, memoryview]] = []
        number = max(0, bisect.bisect_right(self._starts, start) - 1)
        at = start
        while at < stop:
            if number >= len(self._spans) or self._spans[number].offset >= stop:
                parts.append((-1, scratch[at - start : stop - start]))
                break
            span = self._spans[number]
            if span.offset > at:
                parts.append((-1, scratch[at - start : span.offset - start]))
                at = span.offset
            end = min(stop, span.stop)
            if end > at:
                parts.append((number, self._memory_of(number)[at - span.offset : end - span.offset]))
                at = end
            number += 1
        return parts

    def _memory_of(self, number: int) -> memoryview:
        with self._lock:
            if number not in self._memory:
                self._memory[number] = self._spans[number].make()
            return self._memory[number]

    def _hash(self, number: int, views: list[memoryview]) -> None:
        with self._turn:
            while self._hashed != number and not self._failed:
                self._turn.wait()
        if self._failed:
            return
        for view in views:
            self._hasher.update(view)
        with self._turn:
            self._hashed += 1
            self._turn.notify_all()

    def _finish(self, parts: list[tuple[int, memoryview]]) -> None:
        for number, view in parts:
            if number < 0:
                continue
            with self._lock:
                self._missing[number] -= len(view)
                memory = None if self._missing[number] else self._memory.pop(number)
            finish = self._spans[number].finish
            if memory is not None and finish is not None:
                finish(memory)


def _blocks(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, stop in ranges:
        for at in range(start, stop, _BLOCK_BYTES):
            yield at, min(at + _BLOCK_BYTES, stop)
