"""Examples of states and data: each runs as its first lines say, and does what they promise."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from holdfast_contract import keys

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE_SECONDS = 110


def run(name: str, *arguments: object, world: int = 1) -> list[str]:
    """What process 0 prints, line by line, of ``world`` processes that train together."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    places = [
        {keys.ENV_REPLICAS: str(world), keys.ENV_PROCESS_INDEX: str(index), keys.ENV_COORDINATOR: coordinator}
        for index in range(world)
    ]
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, "JAX_PLATFORMS": "cpu", **(place if world > 1 else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for place in places
    ]
    try:
        said = [process.communicate(timeout=EXAMPLE_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * world, said[0][1][-3000:]
    return said[0][0].splitlines()


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
