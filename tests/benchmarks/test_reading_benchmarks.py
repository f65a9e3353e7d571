"""The benchmarks of reading run, with sizes for a test; and what of them is no matter of time is required here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import bit_flips, choose, restore

REPOSITORY = Path(__file__).resolve().parents[2]


def _run(module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_a_restore_takes_little_more_memory_than_the_state(tmp_path: Path) -> None:
    """At its peak, in a process of its own; Orbax's own takes up to twice the state."""
    restore.write_all(tmp_path / "large", mib=128, leaves=8)
    restore.write_all(tmp_path / "small", mib=1, leaves=2)
    assert 1.0 <= restore.in_process(tmp_path, "holdfast")["memory"] <= 1.3


def test_the_benchmark_of_restoring(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    arguments = ("--mib", "2", "--leaves", "2", "--rounds", "1", "--folder", str(tmp_path))
    printed = _run("restore", *arguments, "--json", str(figures))
    rounds: dict[str, list[Any]] = json.loads(figures.read_text())["rounds"]
    assert set(rounds) == set(restore.ARMS)
    assert all(arm in printed and len(rounds[arm]) == 1 for arm in restore.ARMS)


def test_the_benchmark_of_choosing(tmp_path: Path) -> None:
    """It ends with an error unless every decision is the right one."""
    arguments = ("--checkpoints", "30", "--attempts", "3", "--rounds", "2", "--json", str(tmp_path / "f"))
    assert "newest 10 damaged, warm" in _run("choose", *arguments)


def test_a_wrong_choice_ends_the_benchmark(tmp_path: Path) -> None:
    refs = choose.write_run(tmp_path / "run", 3, 1)
    assert choose.newest(tmp_path / "run") == refs[0]
    choose._shorten(tmp_path / "run" / "1" / str(refs[0].step))
    assert choose.newest(tmp_path / "run") == refs[1]


def test_a_hundred_flipped_bits_are_found_by_the_right_name(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    printed = _run("bit_flips", "--flips", "100", "--control", "9", "--seed", "5", "--json", str(figures))
    assert "100 of 100 found" in printed
    found = json.loads(figures.read_text())["holdfast"]
    assert sum(row["count"] for row in found) == 100
    assert {row["layout"] for row in found} == {"holdfast", "sealed, zstd", "sealed, zarr files"}


def test_a_missed_flip_would_be_told(tmp_path: Path) -> None:
    """The check can fail: a file that no manifest lists is nobody's to find."""
    target = bit_flips.write_targets(tmp_path, bit_flips.build_state())[0]
    stray = target.folder / "stray"
    stray.write_bytes(b"x")
    with bit_flips.Flip(stray, 0, 3, "evenly").applied():
        assert bit_flips.refusal(target) == ""
        assert stray.read_bytes() != b"x"
    assert stray.read_bytes() == b"x"
