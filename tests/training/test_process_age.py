"""The age of a process, which the goodput of its start is counted from."""

from __future__ import annotations

import subprocess
import sys
import time

from holdfast.training.goodput import process_age_seconds

CLOCK_TICK_SECONDS = 0.02
"""The system says in ticks of 0.01 s when a process began."""


def test_a_process_knows_its_age() -> None:
    program = "import time; time.sleep(0.3); from holdfast.training.goodput import process_age_seconds as a; print(a())"
    began = time.monotonic()
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert 0.3 <= float(result.stdout) <= time.monotonic() - began + CLOCK_TICK_SECONDS
    assert process_age_seconds() > 0
