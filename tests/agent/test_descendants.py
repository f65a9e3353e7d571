"""What the agent finds among the machine's processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast_agent.reaper import descendants


def test_descendants_are_found_over_sessions_and_names() -> None:
    name = "a b) (c"
    code = f"import ctypes, os, time; ctypes.CDLL(None).prctl(15, b'{name}'); print(flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            assert Path(f"/proc/{child.pid}/comm").read_text().strip() == name
            assert child.pid in descendants(os.getpid())
        finally:
            child.send_signal(signal.SIGKILL)
