"""What ``verify`` is reading, for a person who waits: on stderr, apart from the results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TextIO

from holdfast.cli.printing import size_text
from holdfast_contract.manifest import Rejection
from holdfast_contract.runfolder import Found

LOG_SECONDS: Final = 5.0
"""In a log a line comes at most this often; in a terminal for every checkpoint."""


@dataclass
class VerifyProgress:
    """Prints a line before a checkpoint is read."""

    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    _count: int = 0
    _read_bytes: int = 0
    _printed: float = field(init=False)

    def __post_init__(self) -> None:
        self._printed = self.clock()

    def begin(self, entry: Found | Rejection) -> None:
        """The next checkpoint is about to be read."""
        self._count += 1
        size_bytes = sum(file.size for file in entry.manifest.files) if isinstance(entry, Found) else 0
        if self.stream.isatty() or self.clock() - self._printed >= LOG_SECONDS:
            self._printed = self.clock()
            ref = entry.ref if isinstance(entry, Found) else entry
            where = f"attempt {ref.attempt} step {ref.step}" if ref.attempt else f"step {ref.step}"
            line = f"checkpoint {self._count}: reading {where}, {size_text(size_bytes)}"
            print(f"{line}; {size_text(self._read_bytes)} read before", file=self.stream, flush=True)
        self._read_bytes += size_bytes
