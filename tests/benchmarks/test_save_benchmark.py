"""The benchmarks of saving run, and fail when bytes differ. No time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import save, save_arms, save_leaves, save_memory
from benchmarks.save_windows import Bootstrap

SMALL = ["--size-mib", "1", "--leaves", "3", "--rounds", "2", "--steps", "2"]
ARMS = ["--arms", "orbax async tuned", "copy", "ours"]


def test_it_runs_and_tells_every_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = save.main([*SMALL, *ARMS, "--folder", str(tmp_path), "--json", str(tmp_path / "out.json")])
    said = capsys.readouterr().out
    assert code == 0
    assert "plain Orbax restored every save to the bit" in said
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found["found"]) == {*save.GATES, *ARMS[1:]}
    assert all(len(one["lost"]) == 2 for one in found["found"].values())
    timings = found["timings"]["ours"]
    assert [len(timings[what]) for what in ("call", "background", "sealing")] == [4, 4, 4], "two pairs in each round"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_other_bytes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(save_arms.Holdfast):
        def save(self, step: int, state: save_arms.State) -> None:
            super().save(step, {name: leaf + 1 for name, leaf in state.items()})

    monkeypatch.setitem(save_arms.ARMS, "ours", lambda: Late("direct"))
    assert save.main([*SMALL, "--arms", "ours", "--folder", str(tmp_path)]) == 1


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_step_can_have_a_core_for_itself(tmp_path: Path) -> None:
    """In a process of its own, which it sends to one core."""
    command = [sys.executable, "-m", "benchmarks.save", *SMALL, "--layout", "split", "--arms", "ours"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cores split" in done.stdout


def test_intervals_hold_the_median_and_ratios_have_a_floor() -> None:
    bootstrap = Bootstrap(9)
    values = list(np.linspace(1.0, 3.0, 9))
    low, high = bootstrap.interval(values)
    assert 1.0 <= low < 2.0 < high <= 3.0
    assert bootstrap.ratio([2 * value for value in values], values, 0.1)[0] == pytest.approx(2.0)
    assert bootstrap.ratio(values, [0.0] * 9, 0.5)[0] == pytest.approx(4.0), (
        "a loss below the floor counts as the floor"
    )


def test_memory_is_measured_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert save_memory.main(["--size-mib", "64", "--arms", "copy", "--folder", str(tmp_path), "--steps", "2"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("copy"))
    assert 0.5 < float(line.split()[-1]) < 2


def test_many_leaves_are_compared_with_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--size-mib", "1", "--leaves", "3", "--many-leaves", "9", "--saves", "1", "--folder", str(tmp_path)]
    assert save_leaves.main([*small, "--arms", "ours", "--json", str(tmp_path / "out.json")]) == 0
    assert "restored to the bit" in capsys.readouterr().out
    assert {"call_many", "background_few", "ratio"} <= set(json.loads((tmp_path / "out.json").read_text())["ours"])
