"""A single program outside a pod ends with the code of the error that ends it, and every other end is its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast_contract.exits import ExitCode

BEGIN = """
import atexit, sys
import jax.numpy as jnp
import holdfast

atexit.register(lambda: print("at exit", flush=True))
start = lambda: {"n": jnp.int32(0)}
def train(until=2, **arguments):
    with holdfast.session(sys.argv[1], every=holdfast.every_steps(1), **arguments) as run:
        run.restore(start)
        for step in run.steps(until=until):
            run.commit(step, start())
"""
DAMAGED = """
train()
import pathlib
for manifest in pathlib.Path(sys.argv[1]).rglob("HOLDFAST.json"):
    manifest.write_bytes(b"{")
train()
"""
FORGOTTEN = """
train()
with holdfast.session(sys.argv[1]) as run:
    next(iter(run.steps(until=9)))
"""
OF_AN_OBJECT = """
train()
holdfast.Checkpointer(sys.argv[1], start()).save(1, model=start())
"""
HOOKED = (
    """
sys.excepthook = lambda kind, error, trace: print("my hook:", kind.__name__, file=sys.stderr)
"""
    + DAMAGED
)
OWNED = """
import os
os.environ.update(HOLDFAST_JOB_UID="a", HOLDFAST_JOB_NAME="a", HOLDFAST_RUN="r"); os.makedirs(sys.argv[1]); train()
os.environ.update(HOLDFAST_JOB_UID="b", HOLDFAST_JOB_NAME="b"); train()
"""
CAUGHT = (
    DAMAGED.rstrip()[: -len("train()")]
    + """
try:
    train()
except holdfast.NoValidCheckpoint:
    print("caught", flush=True)
"""
)
ENDS = {
    "damaged": (DAMAGED, ExitCode.NO_VALID_CHECKPOINT, "NoValidCheckpoint"),
    "a hook of the program's own": (HOOKED, ExitCode.NO_VALID_CHECKPOINT, "my hook: NoValidCheckpoint"),
    "no folder for it": ("sys.argv[1] = '/dev/null'; train()", ExitCode.STORAGE, "StorageUnusable"),
    "another job's": (OWNED, ExitCode.FOREIGN_RUN, "ForeignRun"),
    "superseded": (
        "train(); import os; os.environ['HOLDFAST_ATTEMPT'] = '1'; train()",
        ExitCode.SUPERSEDED,
        "Superseded",
    ),
    "forgotten": (FORGOTTEN, ExitCode.USAGE, "RestoreForgotten"),
    "an object's": (OF_AN_OBJECT, ExitCode.USAGE, "RestoreForgotten"),
    "the program's own": ("train(); raise RuntimeError('mine')", 1, "RuntimeError: mine"),
    "the program's own code": ("train(); sys.exit(7)", 7, ""),
    "caught": (CAUGHT, 0, ""),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Code and output of every program; two run at a time."""
    found: dict[str, tuple[int, str]] = {}
    names = list(ENDS)
    for pair in zip(names[::2], names[1::2], strict=True):
        running = {name: _start(ENDS[name][0], tmp_path_factory.mktemp("run") / "checkpoints") for name in pair}
        for name, process in running.items():
            said, _ = process.communicate(timeout=100)
            found[name] = process.returncode, said
    return found


def _start(program: str, path: Path) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")} | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", BEGIN + program, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_with_the_code_of_what_ends_it(ended: dict[str, tuple[int, str]], name: str) -> None:
    _, code, words = ENDS[name]
    found, said = ended[name]
    assert found == code, said
    assert words in said
    assert said.rstrip().endswith("at exit"), "the interpreter ends in order"
    assert "Error in sys.excepthook" not in said


def test_an_interactive_interpreter_stays(tmp_path: Path) -> None:
    lines = [
        "import holdfast",
        f"holdfast.session({str(tmp_path)!r}, run='../x').__enter__()",
        "print('still', 'here')",
    ]
    done = subprocess.run(
        [sys.executable, "-i"], input="\n".join([*lines, ""]), capture_output=True, text=True, timeout=100, check=False
    )
    assert "ConfigurationError" in done.stderr
    assert "still here" in done.stdout
    assert done.returncode == 0
