"""Lost loop time per save: what a save costs a training loop in all, in the call and in the steps after it.

    python -m benchmarks.save [--size-mib 512] [--leaves 16] [--rounds 7] [--folder FOLDER] [--arms ARM ...]

The loop runs jitted steps that are given their state (donated buffers). Lost time is (loop with saves - loop without) /
saves. In each round every arm runs once, in an order that turns round each time; the first round is dropped. After each
run plain Orbax restores every save, and its bytes are compared with the state of that step; if any differ, the exit code
is 1. The arm "none again" is the loop without saves once more: what it "loses" is what the clock of this machine is worth.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import psutil

from benchmarks.save_arms import ARMS, Arm, expected_digests, make_state, make_step, ready, run_loop, wrong_leaves

MIB = 1 << 20
_LIMIT_SECONDS = 600.0
_MANY_LEAVES = 4096
_LIMITS = """What these figures cannot show:
- On CPU there is no copy from a device to the host: read the distance to "copy", not seconds, for an accelerator.
- The steps are bound by memory and leave no core idle, which is the worst case for whatever runs beside them.
- What goes on after the last step of a loop is not counted, in favour of the slow writers."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _options(arguments)
    logging.getLogger("absl").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="holdfast-save-", dir=options.folder) as folder:
        if options.memory_of:
            print(_extra_memory(Path(folder), options))
            return 0
        return _compare(Path(folder), options)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=512, help="of the state")
    parser.add_argument("--leaves", type=int, default=16)
    parser.add_argument("--many-leaves", type=int, default=_MANY_LEAVES, help="compared with --leaves; 0: not at all")
    parser.add_argument("--rounds", type=int, default=7, help="counted ones; one more is dropped")
    parser.add_argument("--saves", type=int, default=2, help="per run")
    parser.add_argument("--steps", type=int, default=40, help="after each save")
    parser.add_argument("--folder", type=Path, default=None, help="where to save; the file system matters")
    parser.add_argument(
        "--arms", nargs="+", choices=list(ARMS), default=list(ARMS), metavar="ARM", help=", ".join(ARMS)
    )
    parser.add_argument("--no-memory", action="store_true", help="leaves out the runs that measure memory")
    parser.add_argument("--json", type=Path, help="writes every round there")
    parser.add_argument("--memory-of", choices=list(ARMS), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _compare(folder: Path, options: argparse.Namespace) -> int:
    names = list(dict.fromkeys(["none", "none again", *options.arms]))
    _say(
        f"{options.size_mib} MiB in {options.leaves} leaves of float32, {options.saves} saves a run with {options.steps} "
        f"steps after each, {options.rounds} rounds; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{_file_system(folder)}, jax {jax.__version__}, Python {platform.python_version()}"
    )
    seconds, arms, wrong = _rounds(folder, names, options)
    _print_lost(seconds, arms, options.saves)
    memory = {}
    if not options.no_memory:
        memory = {name: _memory_in_a_process(name, options) for name in names if not name.startswith("none")}
        _print_memory(memory)
    leaves = _compare_leaf_counts(folder, names, options) if options.many_leaves else {}
    _say(_LIMITS)
    if options.json:
        told = {name: vars(arm.told) for name, arm in arms.items()}
        found = {"seconds": seconds, "told": told, "memory": memory, "leaves": leaves, "options": str(options)}
        options.json.write_text(json.dumps(found, indent=1))
    for line in wrong:
        _say(f"WRONG BYTES: {line}")
    if not wrong:
        _say("every save was restored by plain Orbax to the bit")
    return 1 if wrong else 0


def _rounds(
    folder: Path, names: list[str], options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, Arm], list[str]]:
    arms = {name: ARMS[name]() for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    step, wrong = make_step(), list[str]()
    counts = {"saves": options.saves, "steps": options.steps}
    size = options.size_mib * MIB
    expected = expected_digests(make_state(size, options.leaves), step, **counts)
    for number in range(options.rounds + 1):
        for name in names if number % 2 else reversed(names):
            place = folder / f"{name.replace(' ', '-')}-{number}"
            place.mkdir()
            arms[name].begin(place)
            taken = run_loop(make_state(size, options.leaves), step, arms[name], **counts)
            arms[name].finish()
            wrong += [f"{name}, round {number}, {line}" for line in wrong_leaves(arms[name], expected)]
            shutil.rmtree(place)
            _settle()
            if number:
                seconds[name].append(taken)
        _say(f"round {number} of {options.rounds}" + ("" if number else " (dropped)"), end="\n")
    for arm in arms.values():
        for kept in vars(arm.told).values():
            del kept[: options.saves]  # of the dropped round
    return seconds, arms, wrong


def _settle() -> None:
    """What one arm left in the page cache must not be written back in the next one's time."""
    os.sync()


def _print_lost(seconds: dict[str, list[float]], arms: dict[str, Arm], saves: int) -> None:
    base = seconds["none"]
    lost = {name: [(a - b) / saves for a, b in zip(found, base, strict=True)] for name, found in seconds.items()}
    median = {name: statistics.median(values) for name, values in lost.items()}
    tuned = min((n for n in median if n.startswith("orbax async tuned")), key=median.__getitem__, default=None)
    noise = abs(median["none again"])
    _say(f"\nlost loop time per save; the loop without saves took {statistics.median(base):.2f} s")
    header = (
        "arm",
        "lost ms",
        "(min ... max)",
        "of minima",
        "call ms",
        "waited ms",
        "background s",
        "sealing",
        "async/x",
        "tuned/x",
    )
    _say(_row(header))
    for name, values in lost.items():
        if name == "none":
            continue
        told = arms[name].told
        background = statistics.median(told.background) if told.background else None
        sealing = statistics.median(told.sealing) / background if told.sealing and background else None
        _say(
            _row(
                (
                    name,
                    f"{1000 * median[name]:.0f}",
                    f"({1000 * min(values):.0f} ... {1000 * max(values):.0f})",
                    f"{1000 * (min(seconds[name]) - min(base)) / saves:.0f}",
                    _milliseconds(told.call),
                    _milliseconds(told.waited),
                    "" if background is None else f"{background:.2f}",
                    "" if sealing is None else f"{100 * sealing:.0f} %",
                    _times(median.get("orbax async"), median[name], noise),
                    _times(median[tuned] if tuned else None, median[name], noise),
                )
            )
        )
    _say(f"async/x, tuned/x: how many times less than Orbax async as it comes, and than the best tuned one ({tuned})")
    _say("of minima: the same from each arm's fastest loop, which other programs on the machine disturbed least")
    _say(f"a loss below {1000 * noise:.0f} ms, that of 'none again', is noise; its ratios are then lower bounds (>)")


def _times(other: float | None, own: float, noise: float) -> str:
    if other is None:
        return ""
    return f"{other / own:.1f}" if own > noise else f"> {other / noise:.1f}" if noise else ""


def _milliseconds(values: list[float]) -> str:
    return f"{1000 * statistics.median(values):.1f}" if values else ""


def _row(cells: Sequence[str]) -> str:
    widths = (24, 8, 18, 11, 9, 10, 13, 8, 8, 8)
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


# Memory.


def _memory_in_a_process(name: str, options: argparse.Namespace) -> float | None:
    """Extra resident memory by the state's bytes, in a fresh process that has this arm alone."""
    command = [sys.executable, "-m", "benchmarks.save", "--memory-of", name, "--saves", "2"]
    command += ["--size-mib", str(options.size_mib), "--leaves", str(options.leaves), "--steps", str(options.steps)]
    command += ["--folder", str(options.folder)] if options.folder else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    try:
        return float(done.stdout.split()[-1])
    except (IndexError, ValueError):
        _say(f"memory of {name}: {done.stderr[-500:]}")
        return None


def _extra_memory(folder: Path, options: argparse.Namespace) -> float:
    arm, step = ARMS[options.memory_of](), make_step()
    place = folder / "run"
    place.mkdir()
    arm.begin(place)
    state = make_state(options.size_mib * MIB, options.leaves)
    for _ in range(5):
        state = step(state)
    ready(state)
    with _PeakMemory() as before:
        for _ in range(5):
            state = step(state)
            ready(state)
    with _PeakMemory() as during:
        run_loop(state, step, arm, saves=options.saves, steps=options.steps)
        arm.finish()
    extra: float = (during.peak - before.peak) / (options.size_mib * MIB)
    return extra


class _PeakMemory:
    """The largest resident memory of this process while it is open."""

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


def _print_memory(memory: dict[str, float | None]) -> None:
    _say("\nextra resident memory while saving, in sizes of the state")
    for name, extra in memory.items():
        _say(f"{name:24}" + ("not known" if extra is None else f"{extra:.2f}"))


# Many leaves.


def _compare_leaf_counts(folder: Path, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """The same bytes in few and in many leaves: time in the call and in the background, without a loop."""
    few, many, found = options.leaves, options.many_leaves, {}
    _say(f"\n{options.size_mib} MiB in {many:,} leaves against {few}: ms in the call, seconds in the background")
    for name in names:
        if name.startswith("none"):
            continue
        told = {}
        for leaves in (few, many):
            arm = ARMS[name]()
            place = folder / f"leaves-{leaves}-{name.replace(' ', '-')}"
            place.mkdir()
            arm.begin(place)
            state = ready(make_state(options.size_mib * MIB, leaves))
            for number in range(min(4, options.rounds + 1)):
                arm.save(number, state)
                arm.finish()
            told[leaves] = arm.told
            for left in folder.glob(f"{place.name}*"):
                shutil.rmtree(left)
            _settle()
        found[name] = _print_leaf_counts(name, told[few], told[many])
    return found


def _print_leaf_counts(name: str, few: Any, many: Any) -> dict[str, float]:
    """Medians without the first save, which prepares things; the first is told too."""
    found: dict[str, float] = {"first_call_many": many.call[0], "first_call_few": few.call[0]}
    line = f"{name:24}call {1000 * many.call[0]:.0f} then "
    for what in ("call", "background"):
        one, other = getattr(few, what)[1:], getattr(many, what)[1:]
        if one and other:
            low, high = statistics.median(one), statistics.median(other)
            found |= {f"{what}_few": low, f"{what}_many": high, f"{what}_ratio": high / low}
            scale, digits = (1000, 1) if what == "call" else (1, 2)
            line += f"{scale * high:.{digits}f} against {scale * low:.{digits}f}: {high / low:.1f}x;  "
    _say(line)
    return found


def _file_system(folder: Path) -> str:
    best = max(
        (p for p in psutil.disk_partitions(all=True) if folder.is_relative_to(p.mountpoint)),
        key=lambda p: len(p.mountpoint),
        default=None,
    )
    return best.fstype if best else "file system not known"


def _say(line: str, end: str = "\n") -> None:
    print(line, end=end, flush=True)


if __name__ == "__main__":
    sys.exit(main())
