"""Extra resident memory during saves, in sizes of the state: the peak of the process beyond the loop's own memory.

    python -m benchmarks.save_memory [--size-mib 512] [--leaves 16] [--arms ARM ...]

Each arm runs alone in a fresh process: two saves, with steps after each.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import psutil

from benchmarks.save_arms import ARMS, MIB, make_state, make_step, ready

_LIMIT_SECONDS = 600.0
_SAVES = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 1 if an arm failed, else 0."""
    options = _options(arguments)
    logging.getLogger("absl").setLevel(logging.ERROR)
    if options.only:
        with tempfile.TemporaryDirectory(prefix="holdfast-memory-", dir=options.folder) as folder:
            print(_extra(Path(folder), options))
        return 0
    print(f"extra resident memory during saves of {options.size_mib} MiB, in sizes of the state", flush=True)
    found = {name: _in_a_process(name, options) for name in options.arms}
    return 1 if None in found.values() else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=512, help="size of the state")
    parser.add_argument("--leaves", type=int, default=16)
    parser.add_argument("--steps", type=int, default=24, help="steps after each save")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the saves")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), metavar="ARM")
    parser.add_argument("--only", choices=list(ARMS), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _in_a_process(name: str, options: argparse.Namespace) -> float | None:
    command = [sys.executable, "-m", "benchmarks.save_memory", "--only", name, "--steps", str(options.steps)]
    command += ["--size-mib", str(options.size_mib), "--leaves", str(options.leaves)]
    command += ["--folder", str(options.folder)] if options.folder else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    try:
        found = float(done.stdout.split()[-1])
    except (IndexError, ValueError):
        print(f"{name:26}failed: {done.stderr[-500:]}", flush=True)
        return None
    print(f"{name:26}{found:.2f}", flush=True)
    return found


def _extra(folder: Path, options: argparse.Namespace) -> float:
    arm, step = ARMS[options.only](), make_step()
    arm.begin(folder)
    state = make_state(options.size_mib * MIB, options.leaves)
    for _ in range(5):
        state = step(state)
    ready(state)
    with _PeakMemory() as before:
        for _ in range(5):
            state = ready(step(state))
    with _PeakMemory() as during:
        for number in range(_SAVES):
            arm.save(number, state)
            for _ in range(options.steps):
                state = ready(step(state))
        arm.finish()
    extra: float = (during.peak - before.peak) / (options.size_mib * MIB)
    return extra


class _PeakMemory:
    """Samples the peak resident memory of this process inside a ``with`` block."""

    def __enter__(self) -> Self:
        self._process, self._stop = psutil.Process(), threading.Event()
        self.peak: int = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.peak = max(self.peak, self._process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


if __name__ == "__main__":
    sys.exit(main())
