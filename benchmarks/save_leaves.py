"""The cost of a save with many leaves against few leaves of the same bytes, in the call and in the background, without a loop.

    python -m benchmarks.save_leaves [--size-mib 512] [--leaves 16] [--many-leaves 4096] [--saves 5] [--arms ARM ...]

Medians exclude the first save, which also prepares memory and plans; it is printed next to them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.save_arms import ARMS, GATES, MIB, Timings, digests, make_state, ready, wrong_leaves

_NAMES = [name for name in ARMS if name not in GATES]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns 1 if plain Orbax restores other bytes than were saved, else 0."""
    options = _options(arguments)
    logging.getLogger("absl").setLevel(logging.ERROR)
    few, many, found, wrong = options.leaves, options.many_leaves, {}, list[str]()
    print(f"{options.size_mib} MiB in {many:,} leaves against {few}; first save and median of {options.saves} more")
    for name in options.arms:
        timings = {}
        for leaves in (few, many):
            with tempfile.TemporaryDirectory(prefix="holdfast-leaves-", dir=options.folder) as folder:
                timings[leaves] = _saved(name, Path(folder), leaves, options, wrong)
        found[name] = _print(name, timings[few], timings[many])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print("\n".join(f"WRONG BYTES: {line}" for line in wrong) or "the last save of every arm was restored to the bit")
    return 1 if wrong else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=512, help="size of the state")
    parser.add_argument("--leaves", type=int, default=16)
    parser.add_argument("--many-leaves", type=int, default=4096)
    parser.add_argument("--saves", type=int, default=5, help="number of saves after the first")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the saves")
    parser.add_argument("--arms", nargs="+", choices=_NAMES, default=_NAMES, metavar="ARM", help=", ".join(_NAMES))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args(arguments)


def _saved(name: str, folder: Path, leaves: int, options: argparse.Namespace, wrong: list[str]) -> Timings:
    arm, place = ARMS[name](), folder / "run"
    place.mkdir()
    arm.begin(place)
    state = ready(make_state(options.size_mib * MIB, leaves))
    for number in range(options.saves + 1):
        arm.save(number, state)
        arm.finish()
        stored = arm.stored(number)
        if number == options.saves:
            wrong += [f"{name}, {leaves} leaves, {line}" for line in wrong_leaves(arm, number, digests(state))]
        elif stored is not None:
            shutil.rmtree(stored)
        os.sync()
    return arm.timings


def _print(name: str, few: Timings, many: Timings) -> dict[str, float]:
    found = {"first_call_many": many.call[0], "first_call_few": few.call[0]}
    line = f"{name:26}first call {1000 * many.call[0]:.0f} against {1000 * few.call[0]:.0f} ms"
    for what, other, one in (("call", many.call, few.call), ("background", many.background, few.background)):
        if other[1:] and one[1:]:
            high, low = statistics.median(other[1:]), statistics.median(one[1:])
            found |= {f"{what}_many": high, f"{what}_few": low}
            line += f"; {what} {1000 * high:.0f} against {1000 * low:.0f} ms: {high / low:.1f} x"
    if "background_many" in found:
        high = found["call_many"] + found["background_many"]
        low = found["call_few"] + found["background_few"]
        found["ratio"] = high / low
        line += f"; total {high / low:.1f} x"
    print(line, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
