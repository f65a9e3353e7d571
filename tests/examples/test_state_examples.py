"""Examples of states and data: each runs as its first lines say, and does what they promise."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from holdfast_contract import keys
from tests.support.training import compiled
from tests.support.training.coordinator import coordinator_address

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE_SECONDS = 110


def run(name: str, *arguments: object, world: int = 1) -> list[str]:
    """What process 0 prints, line by line, of ``world`` processes that train together."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    with ExitStack() as stack:
        coordinator = stack.enter_context(coordinator_address())
        places = [
            {keys.ENV_REPLICAS: str(world), keys.ENV_PROCESS_INDEX: str(index), keys.ENV_COORDINATOR: coordinator}
            for index in range(world)
        ]
        started = [_start(command, place if world > 1 else {}) for place in places]
        for process in started:
            stack.callback(process.kill)
        said = [process.communicate(timeout=EXAMPLE_SECONDS) for process in started]
    assert [process.returncode for process in started] == [0] * world, said[0][1][-3000:]
    return said[0][0].splitlines()


def _start(command: list[str], place: dict[str, str]) -> subprocess.Popen[str]:
    environment = {**os.environ, **compiled.environment(), "JAX_PLATFORMS": "cpu", **place}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_nnx_in_fifteen_lines_keeps_the_best_and_resumes(tmp_path: Path) -> None:
    source = (EXAMPLES / "nnx_best_loss.py").read_text()
    loop = source[source.index("keep = ") :]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 15
    assert ast.parse(loop)
    first = run("nnx_best_loss.py", tmp_path)
    losses = [float(found[1]) for line in first if (found := re.fullmatch(r"step \d+: loss (\S+)", line))]
    assert len(losses) in {2, 3}
    assert min(losses) < 0.2
    assert run("nnx_best_loss.py", tmp_path) == first


def test_grain_resumes_at_the_next_record_also_among_another_number_of_processes(tmp_path: Path) -> None:
    whole = run("grain_exact_resume.py", tmp_path / "whole")
    assert re.fullmatch(r"checksum after step 60: 0x[0-9a-f]+", whole[0])
    run("grain_exact_resume.py", tmp_path / "parts", 23, world=2)
    run("grain_exact_resume.py", tmp_path / "parts", 31)
    assert run("grain_exact_resume.py", tmp_path / "parts", 60) == whole


def test_a_plain_loop_has_the_same_bits_when_it_was_interrupted(tmp_path: Path) -> None:
    whole = run("plain_loop.py", tmp_path / "whole", 60)
    assert whole[0] == "begins after step 0"
    run("plain_loop.py", tmp_path / "parts", 33)
    parts = run("plain_loop.py", tmp_path / "parts", 60)
    assert parts == ["begins after step 33", whole[1]]
    assert float(whole[1].rpartition(" ")[2]) < 1.0


@pytest.mark.timeout(240)
def test_two_processes_train_one_sharded_model_and_resume_bit_for_bit(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole.txt", tmp_path / "resumed.txt"
    small = ("--path", tmp_path / "c", "--layers", 1, "--width", 16, "--batch", 4, "--every", 3, "--steps", 8)
    run("char_lm/train.py", *small, "--digest-out", whole, world=2)
    for step in ("6", "8"):
        shutil.rmtree(tmp_path / "c" / "default" / "1" / step)
    run("char_lm/train.py", *small, "--digest-out", resumed, world=2)
    assert resumed.read_text() == whole.read_text() != ""
    found = [(c.attempt, c.step) for c in holdfast.checkpoints(tmp_path / "c", deep=True) if c.valid]
    assert found == [(2, 8), (2, 6), (1, 3)]
