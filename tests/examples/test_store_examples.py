"""Each example of the store runs as its first lines say, and does what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import holdfast

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_SECONDS = 110


def _run(name: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), str(folder)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=EXAMPLE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_a_sealed_orbax_loop_goes_on_from_the_newest_whole_step(tmp_path: Path) -> None:
    assert _run("sealed_orbax.py", tmp_path / "o") == ["begins after step 0", "sealed: [5, 4, 3]"]
    data = max((p for p in (tmp_path / "o" / "5").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    assert _run("sealed_orbax.py", tmp_path / "o")[0] == "begins after step 4"


def test_fine_tuning_begins_with_the_best_encoder_alone(tmp_path: Path) -> None:
    loaded, done = _run("finetune_parameters.py", tmp_path)
    assert loaded == "encoder of step 10, loss 0"
    assert done.startswith("encoder weight 1.1")
    assert done.endswith("head of 3 classes")
    assert {c.run for c in holdfast.checkpoints(tmp_path, deep=True) if c.valid} == {"pretrained", "finetuned"}


def test_recovery_from_damage_step_by_step(tmp_path: Path) -> None:
    lines = _run("recovery_from_damage.py", tmp_path)
    assert "4. The run starts again and continues from step 2." in lines
    assert sum(": damaged" in line for line in lines) == 4
    assert lines[-1] == "  NoValidCheckpoint: 8 refused, exit code 85"
