"""Compares a verified restore with Orbax's restore, from a warm page cache: time, and peak host memory.

``python -m benchmarks.restore [--mib 768] [--leaves 16] [--rounds 7] [--json FILE]``

Every restore is the first one of a fresh process, as after a restart: to touch new memory costs more than the copy into it, and
a process that has restored before still has such memory. A small restore comes first, so that all code is loaded. Each round
starts with another arm. After each restore every byte is compared. The arms:

- ``holdfast``: ``Store.restore`` chooses the newest checkpoint, compares every byte with the manifest, and returns arrays.
- ``orbax, same checkpoint``: Orbax's default restore of the very files that Holdfast reads; it verifies nothing.
- ``orbax, no compression`` and ``orbax, default``: the same for checkpoints that Orbax wrote in this way; default is zstd.

A ratio is the median of the rounds' own ratios, with the interval of the middle half. Memory is the growth of the peak resident
set during the restore, divided by the size of the state.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import xxhash

from holdfast.distributed.coordination import LocalCoordination
from holdfast.store import UNPINNED, Store
from holdfast_contract.manifest import Owner
from holdfast_contract.runfolder import RunFolder

ARMS = ("holdfast", "orbax, same checkpoint", "orbax, no compression", "orbax, default")
_RUN, _PLAIN, _ZSTD = "run", "plain", "zstd"
_OWNER = Owner(job_uid="benchmark", namespace="", name="restore", attempt=1)
MIB = 1024 * 1024
Measured = dict[str, float]
_ready: Callable[[Any], Any] = jax.block_until_ready


def main() -> int:
    """Print the table. Ends the process with an error if an arm returned other bytes than were saved."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mib", type=int, default=768, help="size of the state")
    options.add_argument("--leaves", type=int, default=16)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--json", type=Path, help="write the figures to this file")
    options.add_argument("--folder", type=Path, help="folder for the checkpoints; default: a temporary folder")
    options.add_argument("--measure", nargs=2, metavar=("ARM", "FOLDER"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.measure:
        print(json.dumps(measured(Path(chosen.measure[1]), chosen.measure[0])))
        return 0
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="holdfast-restore-") as scratch:
        folder = Path(scratch)
        write_all(folder / "large", mib=chosen.mib, leaves=chosen.leaves)
        write_all(folder / "small", mib=1, leaves=2)
        print(
            f"{chosen.mib} MiB of float32 in {chosen.leaves} leaves; jax {jax.__version__}, orbax {ocp.__version__}, "
            f"python {platform.python_version()}, {jax.default_backend()}; {platform.machine()}, "
            f"{len(os.sched_getaffinity(0))} CPUs"
        )
        rounds = run_rounds(folder, chosen.rounds)
    _print_tables(rounds, chosen.mib)
    if chosen.json:
        chosen.json.write_text(json.dumps({"mib": chosen.mib, "rounds": rounds}, indent=1))
    return 0


def write_all(folder: Path, *, mib: int, leaves: int) -> None:
    """Save the same state in three ways, and write down every leaf's shape and digest."""
    state = build_state(mib, leaves)
    store = open_store(folder)
    store.save(1, state).result(600)
    store.close()
    for name, compressed in ((_PLAIN, False), (_ZSTD, True)):
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=compressed)) as writer:
            writer.save((folder / name).absolute(), args=ocp.args.PyTreeSave(state))
    note = {name: [list(leaf.shape), digest(leaf)] for name, leaf in state.items()}
    (folder / "leaves.json").write_text(json.dumps(note))


def build_state(mib: int, leaves: int) -> dict[str, jax.Array]:
    """Return random float32 leaves, distributed like parameters."""
    random = np.random.default_rng(7)
    shape = (mib * MIB // 4 // leaves // 1024, 1024)
    return {f"w{n:04}": jax.device_put(random.standard_normal(shape, dtype=np.float32)) for n in range(leaves)}


def open_store(folder: Path) -> Store:
    """Open the store of the next attempt and claim the run."""
    (folder / _RUN).mkdir(parents=True, exist_ok=True)
    run = RunFolder(folder / _RUN)
    attempt = run.highest_attempt() + 1
    store = Store(run, attempt=attempt, owner=_OWNER, coordination=LocalCoordination())
    store.claim()
    return store


def restorer(folder: Path, arm: str) -> Callable[[], Any]:
    """Return a function that restores the state in ``folder``."""
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = {name: shape for name, (shape, _) in json.loads((folder / "leaves.json").read_text()).items()}
    struct: Any = jax.ShapeDtypeStruct
    abstract = {name: struct(tuple(shape), np.float32, sharding=sharding) for name, shape in shapes.items()}
    if arm == "holdfast":
        store = open_store(folder)

        def by_holdfast() -> Any:
            restored = store.restore(UNPINNED, abstract)
            assert restored is not None
            assert restored.rejected == ()
            return restored.state

        return by_holdfast
    places = {
        "orbax, same checkpoint": folder / _RUN / "1" / "1" / "state",
        "orbax, no compression": folder / _PLAIN,
        "orbax, default": folder / _ZSTD,
    }
    reader = ocp.StandardCheckpointer()
    return lambda: reader.restore(places[arm].absolute(), abstract)


def run_rounds(folder: Path, rounds: int) -> dict[str, list[Measured]]:
    """Measure each arm in each round."""
    for path in folder.rglob("*"):
        if path.is_file():
            xxhash.xxh3_64(path.read_bytes())  # into the page cache
    taken: dict[str, list[Measured]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for arm in ARMS[number % len(ARMS) :] + ARMS[: number % len(ARMS)]:
            taken[arm].append(in_process(folder, arm))
        if sys.stderr.isatty():
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return taken


def digest(leaf: jax.Array) -> str:
    """Return the digest of a leaf's bytes."""
    return xxhash.xxh3_128_hexdigest(np.asarray(leaf).reshape(-1).view(np.uint8).data)


def in_process(folder: Path, arm: str) -> Measured:
    """Run ``measured`` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.restore", "--measure", arm, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{arm}: {found.stderr[-2000:]}")
    return dict(json.loads(found.stdout.splitlines()[-1]))


def measured(folder: Path, arm: str) -> Measured:
    """Measure a restore: wall seconds, processor seconds, and the growth of the resident set in sizes of the state.

    Ends the process with an error if the bytes are not those that were saved.
    """
    _ready(restorer(folder / "small", arm)())
    restore = restorer(folder / "large", arm)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = _status_bytes("VmRSS")
    start, start_cpu = time.perf_counter(), time.process_time()
    state = _ready(restore())
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    peak = _status_bytes("VmHWM") - before
    expected = {n: d for n, (_, d) in json.loads((folder / "large" / "leaves.json").read_text()).items()}
    if {name: digest(leaf) for name, leaf in state.items()} != expected:
        raise SystemExit("the restored bytes differ from the saved bytes")
    return {"seconds": seconds, "cpu_seconds": cpu, "memory": peak / sum(leaf.nbytes for leaf in state.values())}


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _print_tables(rounds: dict[str, list[Measured]], mib: int) -> None:
    print(
        f"\n{'arm':<23} {'median s (min … max)':<24} {'GiB/s':>6} {'CPU s':>6}  {'Holdfast is faster':<24} peak memory"
    )
    for arm in ARMS:
        seconds = [one["seconds"] for one in rounds[arm]]
        middle = statistics.median(seconds)
        cpu = statistics.median(one["cpu_seconds"] for one in rounds[arm])
        memory = max(one["memory"] for one in rounds[arm])
        spread = f"{middle:.2f} ({min(seconds):.2f} … {max(seconds):.2f})"
        print(
            f"{arm:<23} {spread:<24} {mib / 1024 / middle:>6.2f} {cpu:>6.2f}  {_ratio(rounds, arm):<24} {memory:.2f} ×"
        )


def _ratio(rounds: dict[str, list[Measured]], arm: str) -> str:
    pairs = zip(rounds[arm], rounds[ARMS[0]], strict=True)
    ratios = sorted(other["seconds"] / own["seconds"] for other, own in pairs)
    if len(ratios) < 4:
        return f"{statistics.median(ratios):.1f} ×"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.1f} × ({low:.1f} … {high:.1f})"


if __name__ == "__main__":
    sys.exit(main())
