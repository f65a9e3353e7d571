"""Lost loop time per save: the total cost of a save to a training loop, in the call and in the steps after it.

    python -m benchmarks.save [--layout shared|split] [--size-mib 512] [--leaves 16] [--rounds 7] [--arms ARM ...]

The loop runs jitted steps that donate their state. Each round measures every arm, in an order that is reversed every time, with
two pairs of windows: ``--steps`` steps with one save at their beginning, and as many without; one pair in this order, the
other in reverse. Lost time is the difference. The first round is dropped. After each save plain Orbax restores it, and the
bytes are compared with the state of that step. If any byte differs, the exit code is 1.

Two control arms show how far to trust the harness: "none" saves nothing and must lose nothing; "asleep 50 ms" must lose 50 ms.
``benchmarks.save_memory`` measures memory, and ``benchmarks.save_leaves`` the effect of the number of leaves.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import psutil

from benchmarks.cores import Cores
from benchmarks.save_arms import ARMS, GATES, MIB, Arm, Asleep, make_state, make_step, ready
from benchmarks.save_windows import Bootstrap, Found, Loop, measure_round

_LIMITS = """What these figures cannot show:
- On CPU there is no copy from a device to the host. For an accelerator, read the distance to "copy", not the seconds.
- The steps are bound by memory bandwidth, which is the worst case for a copy that runs at the same time.
- Work after the end of the window is not counted, in favour of slow writers. "late" counts these cases."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code."""
    options = _options(arguments)
    logging.getLogger("absl").setLevel(logging.ERROR)
    cores = Cores(options.layout)
    cores.begin(lambda: ready(make_step()(make_state(MIB, 2))))
    with tempfile.TemporaryDirectory(prefix="holdfast-save-", dir=options.folder) as folder:
        return _compare(Path(folder), cores, options)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--layout", choices=("shared", "split"), default="shared", help="split: the step has a core to itself"
    )
    parser.add_argument("--size-mib", type=int, default=512, help="size of the state")
    parser.add_argument("--leaves", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds; one more round is dropped")
    parser.add_argument("--steps", type=int, default=24, help="steps in a window")
    parser.add_argument("--folder", type=Path, default=None, help="folder for the saves; its file system matters")
    names = [name for name in ARMS if name not in GATES]
    parser.add_argument("--arms", nargs="+", choices=names, default=names, metavar="ARM", help=", ".join(names))
    parser.add_argument("--json", type=Path, help="write every round to this file")
    return parser.parse_args(arguments)


def _compare(folder: Path, cores: Cores, options: argparse.Namespace) -> int:
    names = [*GATES, *options.arms]
    _say(
        f"{options.size_mib} MiB in {options.leaves} leaves of float32, cores {options.layout}, windows of "
        f"{options.steps} steps, {options.rounds} rounds; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{_file_system(folder)}, jax {jax.__version__}, Python {platform.python_version()}"
    )
    found, arms = _rounds(folder, names, cores, options)
    _print_lost(found, arms)
    _say(_LIMITS)
    if options.json:
        timings = {name: asdict(arm.timings) for name, arm in arms.items()}
        rounds = {name: asdict(one) for name, one in found.items()}
        options.json.write_text(json.dumps({"options": str(options), "found": rounds, "timings": timings}, indent=1))
    wrong = [f"{name}: {line}" for name, one in found.items() for line in one.wrong]
    for line in wrong:
        _say(f"WRONG BYTES: {line}")
    if not wrong:
        _say("plain Orbax restored every save to the bit")
    return 1 if wrong else 0


def _rounds(
    folder: Path, names: list[str], cores: Cores, options: argparse.Namespace
) -> tuple[dict[str, Found], dict[str, Arm]]:
    arms = {name: ARMS[name]() for name in names}
    found = {name: Found() for name in names}
    loop = Loop(make_step(), options.steps, cores.apart)
    for number in range(options.rounds + 1):
        for name in names if number % 2 else reversed(names):
            state = ready(make_state(options.size_mib * MIB, options.leaves))
            place = folder / f"{name.replace(' ', '-')}-{number}"
            one = measure_round(arms[name], state, loop, place)
            found[name].wrong += one.wrong
            if number:
                found[name].lost += one.lost
                found[name].steps += one.steps
                found[name].unfinished += one.unfinished
            else:
                arms[name].timings.clear()
        _say(f"round {number} of {options.rounds}" + ("" if number else " (dropped)"))
    return found, arms


def _print_lost(found: dict[str, Found], arms: dict[str, Arm]) -> None:
    bootstrap = Bootstrap(len(found["none"].lost))
    floor = max(abs(bound) for bound in bootstrap.interval(found["none"].lost))
    steps = [seconds for one in found.values() for seconds in one.steps]
    _say(f"\nlost loop time per save, median of rounds (95 % of medians); a step takes {_ms(steps)} ms")
    _say(_row("arm", "lost ms", "call ms", "waited ms", "background s", "sealing", "late", "async/x", "tuned/x"))
    default = found.get("orbax async")
    tuned = min(
        (name for name in found if name.startswith("orbax async tuned")),
        key=lambda name: statistics.median(found[name].lost),
        default=None,
    )
    for name, one in found.items():
        _say(
            _row(
                name,
                _interval(one.lost, bootstrap),
                *_timings(arms[name]),
                f"{one.unfinished}/{2 * len(one.lost)}",
                _times(default, one, bootstrap, floor),
                _times(found[tuned] if tuned else None, one, bootstrap, floor),
            )
        )
    _say(
        f"async/x, tuned/x: loss of Orbax async with default options, and of the best tuned one ({tuned}), by this arm's"
    )
    _say(f"a loss below {1000 * floor:.0f} ms cannot be distinguished from none; ratios use that floor")
    _say(_verdict(found, bootstrap))


def _verdict(found: dict[str, Found], bootstrap: Bootstrap) -> str:
    """Say whether the control arms confirm the harness."""
    low, high = bootstrap.interval(found["none"].lost)
    least, most = bootstrap.interval(found["asleep 50 ms"].lost)
    if low <= 0 <= high and least <= Asleep.SECONDS <= most:
        return "conclusive: the harness finds no loss without a save, and finds the sleep of 50 ms"
    return "INCONCLUSIVE: the harness finds a loss without a save, or does not find the sleep of 50 ms"


def _timings(arm: Arm) -> tuple[str, str, str, str]:
    timings = arm.timings
    background = statistics.median(timings.background) if timings.background else None
    sealing = statistics.median(timings.sealing) / background if timings.sealing and background else None
    return (
        _ms(timings.call),
        _ms(timings.waited),
        "" if background is None else f"{background:.2f}",
        "" if sealing is None else f"{100 * sealing:.0f} %",
    )


def _interval(values: list[float], bootstrap: Bootstrap) -> str:
    low, high = bootstrap.interval(values)
    return f"{_ms(values)} ({1000 * low:.0f} ... {1000 * high:.0f})"


def _times(other: Found | None, own: Found, bootstrap: Bootstrap, floor: float) -> str:
    if other is None or other is own:
        return ""
    middle, low, high = bootstrap.ratio(other.lost, own.lost, floor)
    return f"{middle:.1f} ({low:.1f} ... {high:.1f})"


def _ms(values: list[float]) -> str:
    return f"{1000 * statistics.median(values):.0f}" if values else ""


def _row(*cells: str) -> str:
    widths = (26, 20, 9, 11, 14, 9, 7, 20, 20)
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _file_system(folder: Path) -> str:
    best = max(
        (p for p in psutil.disk_partitions(all=True) if folder.is_relative_to(p.mountpoint)),
        key=lambda p: len(p.mountpoint),
        default=None,
    )
    return best.fstype if best else "unknown file system"


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
