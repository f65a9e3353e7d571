"""Flips single bits in stored checkpoints: does verification find each flip, and does it name the right file?

``python -m benchmarks.bit_flips [--flips 10000] [--control 300] [--seed 1] [--json FILE]``

The checkpoints have three layouts, in turn: Holdfast's own (OCDBT, raw chunks), a plain Orbax manager's (OCDBT, zstd) and one
with a file per chunk (zarr); the last two are sealed. Each round flips one random bit of one random file, verifies every byte
as before a restore, and flips the bit back. Half of the files are drawn by size (where corruption is most likely), half evenly
(so that small files count, too); the manifest is a file like any other. The exit code is 1 if a flip is missed or the wrong
file is named.

Control: plain Orbax loads checkpoints with the same kind of flip; the benchmark counts how often it returns wrong numbers
without an error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import orbax.checkpoint as ocp

import holdfast
from holdfast.catalog import listing as catalog
from holdfast.distributed.coordination import LocalCoordination
from holdfast.store import Store
from holdfast_contract.manifest import Owner
from holdfast_contract.runfolder import RunFolder

STEP: Final = 1
MISSED: Final = "missed"
_PROGRESS_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Target:
    """One checkpoint: its folder, and the folder that Orbax loads."""

    layout: str
    folder: Path
    state: Path

    def files(self) -> list[Path]:
        """Return every file that may be damaged: all that are not empty."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and path.stat().st_size)


@dataclass(frozen=True)
class Flip:
    """One bit of one file."""

    path: Path
    byte: int
    bit: int
    drawn: str

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Flip the bit, and flip it back at the end of the ``with`` block."""
        self._turn()
        try:
            yield
        finally:
            self._turn()

    def _turn(self) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.byte)
            found = file.read(1)[0]
            file.seek(self.byte)
            file.write(bytes([found ^ (1 << self.bit)]))


def main() -> int:
    """Print the tables. Returns 1 if a flip was missed, else 0."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--flips", type=int, default=10_000)
    options.add_argument("--control", type=int, default=300)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = options.parse_args()
    draw = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-flips-") as scratch:
        state = build_state()
        targets = write_targets(Path(scratch), state)
        sizes = {t.layout: sum(p.stat().st_size for p in t.files()) for t in targets}
        print(f"seed {chosen.seed}; bytes: {sizes}; files: { {t.layout: len(t.files()) for t in targets} }")
        found = verify_flips(targets, draw, chosen.flips)
        taken = load_flips(targets, state, draw, chosen.control)
    print(f"\nHoldfast, {chosen.flips} flips:")
    _print_counts(found)
    print(f"\ncontrol, plain Orbax, {chosen.control} flips:")
    _print_counts(taken)
    missed = sum(count for (_, _, outcome), count in found.items() if outcome == MISSED)
    print(f"\n{chosen.flips - missed} of {chosen.flips} found, the right file named each time; {missed} missed")
    if chosen.json:
        chosen.json.write_text(json.dumps({"holdfast": _jsonable(found), "orbax": _jsonable(taken)}, indent=1))
    return 1 if missed else 0


def build_state() -> dict[str, Any]:
    """Return a quarter of a mebibyte in eight arrays, and a counter."""
    numbers = np.random.default_rng(3)
    state = {f"w{n}": jax.device_put(numbers.standard_normal((64, 128), dtype=np.float32)) for n in range(8)}
    return {"params": state, "count": jax.device_put(np.int32(7))}


def write_targets(folder: Path, state: Any) -> list[Target]:
    """Write the checkpoint in every layout."""
    run = RunFolder(folder / "own")
    run.root.mkdir()
    owner = Owner(job_uid="benchmark", namespace="", name="flips", attempt=1)
    store = Store(run, attempt=1, owner=owner, coordination=LocalCoordination())
    store.claim()
    store.save(STEP, state).result(60)
    store.close()
    own = run.step_folder(1, STEP)
    targets = [Target("holdfast", own, own / "state")]
    for name, arguments in (("sealed, zstd", {}), ("sealed, zarr files", {"use_ocdbt": False})):
        root = folder / name.replace(", ", "-").replace(" ", "-")
        handler = ocp.PyTreeCheckpointHandler(**arguments)
        with ocp.CheckpointManager(root, item_handlers=handler) as manager:
            manager.save(STEP, args=ocp.args.PyTreeSave(state))
        holdfast.seal(root, STEP)
        step = root / str(STEP)
        targets.append(Target(name, step, step / "default"))
    return targets


def draw_flip(target: Target, draw: random.Random) -> Flip:
    """Draw a bit of a file; the file is drawn by size or evenly."""
    files = target.files()
    drawn = draw.choice(("by size", "evenly"))
    weights = [path.stat().st_size for path in files] if drawn == "by size" else None
    path = draw.choices(files, weights)[0]
    return Flip(path, draw.randrange(path.stat().st_size), draw.randrange(8), drawn)


Counts = Counter[tuple[str, str, str]]
"""(layout, how the file was drawn, outcome)."""


def verify_flips(targets: list[Target], draw: random.Random, flips: int) -> Counts:
    """Flip bits, verify each checkpoint deeply, and count the outcomes."""
    counts: Counts = Counter()
    for target in targets:
        if reason := refusal(target):
            raise SystemExit(f"{target.layout}: an undamaged checkpoint is refused: {reason}")
    shown = time.monotonic()
    for number in range(flips):
        target = targets[number % len(targets)]
        flip = draw_flip(target, draw)
        with flip.applied():
            reason = refusal(target)
        name = flip.path.relative_to(target.folder).as_posix()
        outcome = "found" if name in reason else MISSED
        if outcome is MISSED:
            print(f"{MISSED}: {name} byte {flip.byte} bit {flip.bit}: {reason or 'valid'}", file=sys.stderr)
        counts[target.layout, flip.drawn, outcome] += 1
        if time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            print(f"{number + 1} of {flips}", file=sys.stderr, flush=True)
    return counts


def refusal(target: Target) -> str:
    """Return why a deep verification refuses the checkpoint; "" if it accepts it."""
    place, entry = catalog.step_at(target.folder)
    checked = place.check(entry, deep=True)
    return "" if checked.valid else checked.reason


def load_flips(targets: list[Target], state: Any, draw: random.Random, flips: int) -> Counts:
    """Flip bits, load each checkpoint with plain Orbax, and count the outcomes."""
    counts: Counts = Counter()
    expected = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]
    logging.disable(logging.ERROR)
    sys.unraisablehook = lambda _: None  # a failed Orbax load leaves coroutines that warn until exit
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  for the rest of the process
    for number in range(flips):
        target = targets[number % len(targets)]
        flip = draw_flip(target, draw)
        with flip.applied():
            outcome = _loaded(target, state, expected)
        counts[target.layout, flip.drawn, outcome] += 1
    return counts


def _loaded(target: Target, state: Any, expected: list[bytes]) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = ocp.StandardCheckpointer().restore(target.state, state)
            found = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(loaded)]
    except Exception:  # Orbax raises many kinds
        return "error"
    return "right numbers" if found == expected else "wrong numbers, silently"


def _print_counts(counts: Counts) -> None:
    for (layout, drawn, outcome), count in sorted(counts.items()):
        print(f"  {layout:<20} {drawn:<8} {outcome:<32} {count:>6}")


def _jsonable(counts: Counts) -> list[dict[str, object]]:
    return [
        {"layout": layout, "drawn": drawn, "outcome": outcome, "count": count}
        for (layout, drawn, outcome), count in sorted(counts.items())
    ]


if __name__ == "__main__":
    sys.exit(main())
