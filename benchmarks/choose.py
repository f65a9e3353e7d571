"""Measures how long it takes to find the newest valid one of many checkpoints, and which functions take the time.

``python -m benchmarks.choose [--checkpoints 1000] [--attempts 1] [--rounds 50] [--json FILE]``

The decision begins with the run's path. It ends with a checkpoint whose manifest belongs to its folder and whose files all
exist with the listed sizes. A restore chooses this checkpoint before it reads; unless bits have changed, it is valid. The
restore compares digests while it reads, and tries the next checkpoint if one is wrong.

Arms: the newest checkpoint is complete (the usual case); the newest 10 are damaged (truncated); every manifest is read (as for
a list of all checkpoints). Warm: everything is in the page cache. Cold: the first decision of a fresh process, after the
kernel was advised to drop the manifests' pages; the kernel keeps the folders' names.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import io
import json
import os
import platform
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.store.format import digests
from holdfast.store.read.candidates import NEWEST, Candidates
from holdfast.store.store_settings import UNPINNED, StoreSettings
from holdfast_contract import manifest
from holdfast_contract.keys import MANIFEST_FILE
from holdfast_contract.manifest import CheckpointRef, Manifest, Owner, Rejection
from holdfast_contract.runfolder import RunFolder

_RUN: Final = "run"
_SETTINGS: Final = StoreSettings(poison_after=3)  # as under the operator, which reads the notes of all attempts
_DAMAGED: Final = 10


def main() -> int:
    """Print the table. A wrong decision ends the process with exit code 1."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--checkpoints", type=int, default=1000)
    options.add_argument("--attempts", type=int, default=1, help="number of attempts that share the checkpoints")
    options.add_argument("--rounds", type=int, default=50)
    options.add_argument("--json", type=Path, help="write the figures to this file")
    options.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.once:
        print(json.dumps(timed(lambda: newest(chosen.once))))
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-choose-") as scratch:
        root = Path(scratch) / _RUN
        refs = write_run(root, chosen.checkpoints, chosen.attempts)
        files = len(next(iter(RunFolder(root).walk())).manifest.files)  # type: ignore[union-attr]
        print(
            f"{chosen.checkpoints} checkpoints of {files} files in {chosen.attempts} attempts; "
            f"python {platform.python_version()}, {platform.machine()}, {len(os.sched_getaffinity(0))} CPUs"
        )
        figures = measure(root, refs, chosen.rounds)
        cost = profile(lambda: newest(root))
    for arm, seconds in figures.items():
        spread = f"({1000 * min(seconds):.2f} … {1000 * max(seconds):.2f})"
        print(f"{arm:<34} {1000 * statistics.median(seconds):>8.2f} ms {spread}")
    print(f"\nnewest, warm: functions by own time:\n{cost}")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))
    return 0


def write_run(root: Path, checkpoints: int, attempts: int) -> list[CheckpointRef]:
    """Save one real checkpoint and link its files into the others' folders. Returns all checkpoints, newest first."""
    first = _save_one(root)
    refs = []
    for number in range(checkpoints):
        attempt, step = 1 + number * attempts // checkpoints, 100 * (number + 1)
        folder = root / str(attempt) / str(step)
        data = manifest.to_bytes(dataclasses.replace(first.manifest, attempt=attempt, step=step))
        for entry in first.manifest.files:
            (folder / entry.path).parent.mkdir(parents=True, exist_ok=True)
            os.link(first.folder / entry.path, folder / entry.path)
        (folder / MANIFEST_FILE).write_bytes(data)
        refs.append(CheckpointRef(attempt, step, manifest.digest_of(data)))
    shutil.rmtree(first.folder)
    return refs[::-1]


@dataclasses.dataclass(frozen=True)
class _Saved:
    folder: Path
    manifest: Manifest


def _save_one(root: Path) -> _Saved:
    import jax.numpy as jnp

    from holdfast.distributed.coordination import LocalCoordination
    from holdfast.store import Store

    root.mkdir()
    owner = Owner(job_uid="benchmark", namespace="", name="choose", attempt=1)
    store = Store(RunFolder(root), attempt=1, owner=owner, coordination=LocalCoordination())
    store.claim()
    store.save(0, {"params": {"w": jnp.ones((64, 64)), "b": jnp.ones(64)}, "step": 1}).result(60)
    store.close()
    found = RunFolder(root).survey().found[0]
    return _Saved(found.folder, found.manifest)


def newest(root: Path) -> CheckpointRef | None:
    """Choose a checkpoint as a restore of the next attempt would."""
    run = RunFolder(root)
    for entry in Candidates(run, run.highest_attempt() + 1, _SETTINGS).in_order(UNPINNED, NEWEST):
        if isinstance(entry, Rejection):
            continue
        try:
            files, seconds = entry.manifest.files, _SETTINGS.transient_seconds
            digests.verify_sizes(entry.folder, files, threads=_SETTINGS.io_threads, transient_seconds=seconds)
        except digests.DamagedFileError:
            continue
        return entry.ref
    return None


def measure(root: Path, refs: list[CheckpointRef], rounds: int) -> dict[str, list[float]]:
    """Measure the seconds of each arm. Ends the process if a decision is wrong."""
    figures = {"newest, warm": [_right(timed(lambda: newest(root)), refs[0]) for _ in range(rounds + 1)][1:]}
    figures["newest, cold (see above)"] = [_cold(root, refs[0]) for _ in range(min(rounds, 5))]
    figures["every manifest read, warm"] = [timed(lambda: len(RunFolder(root).survey().found))[0] for _ in range(3)]
    damaged = refs[: min(_DAMAGED, len(refs) - 1)]
    for ref in damaged:
        _shorten(RunFolder(root).step_folder(ref.attempt, ref.step))
    expected = refs[len(damaged)]
    arm = f"newest {len(damaged)} damaged, warm"
    figures[arm] = [_right(timed(lambda: newest(root)), expected) for _ in range(rounds + 1)][1:]
    for ref in damaged:  # so that the profile is of the ordinary case
        shutil.rmtree(RunFolder(root).step_folder(ref.attempt, ref.step))
    return figures


def timed(action: Callable[[], object]) -> tuple[float, object]:
    """Run an action. Returns (seconds, result)."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, dataclasses.asdict(result) if dataclasses.is_dataclass(result) else result  # type: ignore[arg-type]


def profile(action: Callable[[], object]) -> str:
    """Return the ten functions with the most time of their own."""
    profiler = cProfile.Profile()
    profiler.runcall(action)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(10)
    lines = text.getvalue().splitlines()
    return "\n".join(line for line in lines if line.strip())


def _right(found: tuple[float, object], expected: CheckpointRef) -> float:
    seconds, ref = found
    if ref != dataclasses.asdict(expected):
        raise SystemExit(f"decided for {ref}, expected {expected}")
    return seconds


def _cold(root: Path, expected: CheckpointRef) -> float:
    for path in root.rglob(MANIFEST_FILE):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, "-m", "benchmarks.choose", "--once", str(root)]
    seconds, ref = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return _right((float(seconds), ref), expected)


def _shorten(folder: Path) -> None:
    """Cut a file short; not through the link that other checkpoints share."""
    path = folder / "STRUCTURE.json"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])


if __name__ == "__main__":
    sys.exit(main())
