"""The benchmark of saving runs, and fails when bytes differ. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import save, save_arms

SMALL = ["--size-mib", "1", "--leaves", "3", "--many-leaves", "9", "--rounds", "1", "--saves", "1", "--steps", "2"]
ARMS = ["--arms", "orbax async tuned", "copy", "ours"]


def test_it_runs_and_tells_every_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = save.main([*SMALL, *ARMS, "--folder", str(tmp_path), "--json", str(tmp_path / "out.json"), "--no-memory"])
    said = capsys.readouterr().out
    assert code == 0
    assert "every save was restored by plain Orbax to the bit" in said
    told = json.loads((tmp_path / "out.json").read_text())
    assert set(told["seconds"]) == {"none", "none again", *ARMS[1:]}
    assert all(len(found) == 1 for found in told["seconds"].values())
    assert [len(told["told"]["ours"][what]) for what in ("call", "background", "sealing")] == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_other_bytes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(save_arms.Holdfast):
        def save(self, step: int, state: save_arms.State) -> None:
            super().save(step, {name: leaf + 1 for name, leaf in state.items()})

    monkeypatch.setitem(save_arms.ARMS, "ours", lambda: Late("direct"))
    assert save.main([*SMALL, "--arms", "ours", "--folder", str(tmp_path), "--no-memory"]) == 1


def test_memory_is_measured_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        save.main([*SMALL, "--arms", "copy", "--folder", str(tmp_path), "--size-mib", "64", "--many-leaves", "0"]) == 0
    )
    memory = capsys.readouterr().out.partition("extra resident memory")[2]
    line = next(line for line in memory.splitlines() if line.startswith("copy"))
    assert 0.5 < float(line.split()[-1]) < 2
