"""The example and the benchmark run and print what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(*command):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=220, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_example_prints_the_table_and_equal_gradients(tmp_path):
    printed = _run("examples/remat.py", str(tmp_path / "report.json"))
    assert re.search(r"^\*  automatic ", printed, re.MULTILINE)
    assert len(re.findall(r"largest difference of a gradient", printed)) == 2
    _run("tools/remat_chart.py", str(tmp_path / "report.json"), str(tmp_path / "chart.svg"))
    assert (tmp_path / "chart.svg").read_text().startswith("<svg")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", ["--tiny", "--small"])
def test_benchmark_prints_ratios_of_all_arms(tmp_path, size):
    printed = _run("benchmarks/remat.py", size, "--json", str(tmp_path / "rounds.json"))
    for arm in ("none", "everything again", "selective", "automatic"):
        assert re.search(rf"^{arm} ", printed, re.MULTILINE), printed
    assert "cannot show" in printed
    assert (tmp_path / "rounds.json").stat().st_size > 0
