"""What an import brings with it, in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys


def test_importing_starts_nothing_and_imports_no_jax() -> None:
    program = (
        "import sys, threading, holdfast; "
        "print(sorted(m for m in ('jax', 'jaxlib', 'numpy', 'orbax', 'pydantic') if m in sys.modules),"
        " threading.active_count())"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split("\n")[0] == "[] 1"


def test_the_reader_needs_the_standard_library_only() -> None:
    script = (
        "import sys; before = set(sys.modules); import holdfast_contract.runfolder;"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before} - {'holdfast_contract'};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


def test_the_agent_imports_nothing_heavy() -> None:
    code = "import sys, holdfast_agent.__main__, holdfast_agent.inspection, holdfast_contract.runfolder; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    tops = {name.split(".")[0] for name in modules if not name.startswith("_")}
    ours = {"holdfast_agent", "holdfast_contract"}
    foreign = {name for name in tops if name not in sys.stdlib_module_names and name not in ours}
    assert not {name for name in foreign if "editable" not in name and "distutils" not in name}
    assert not {"ctypes", "subprocess", "asyncio", "multiprocessing", "logging"} & tops
