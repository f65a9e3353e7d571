"""Programs are built once per content, whoever asks, and a failure says what the compiler said."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from localkube.build import Recipe, built
from localkube.errors import BinariesError
from localkube.paths import CACHE_VARIABLE, cache_root
from localkube.progress import silent
from localkube.toolchain import WHEEL_VERSION, find_toolchain
from tests.support.polling import until

END_SECONDS = 30.0
PROGRAM = 'package main\n\nvar greeting = "unset"\n\nfunc main() { println(greeting) }\n'

BUILDER = """
import sys
from pathlib import Path
from localkube.build import Recipe, built
recipe = Recipe("tiny", Path(sys.argv[1]), ".", ("-s",), "tiny")
print(built(recipe, lambda line: print(line, file=sys.stderr)))
"""


T = TypeVar("T")


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go module of one file, and a cache of the test's own; Go's standard library need not be compiled for each."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    monkeypatch.setenv("GOCACHE", os.environ.get("GOCACHE") or str(cache / "go-build"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = tmp_path / "module"
    folder.mkdir()
    (folder / "go.mod").write_text("module tiny\n\ngo 1.26\n")
    (folder / "main.go").write_text(PROGRAM)
    return folder


def tiny(module: Path, greeting: str = "hello") -> Recipe:
    return Recipe("tiny", module, ".", ("-s", f"-X main.greeting={greeting}"), "tiny", links=("other",))


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    assert cache_root().parent == tmp_path
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"


def test_a_program_is_built_once_and_again_when_anything_changes(module: Path) -> None:
    said: list[str] = []
    first = built(tiny(module), said.append)
    greeted = subprocess.run([first / "other"], capture_output=True, text=True, check=True)
    assert greeted.stderr == "hello\n"
    assert any("built in" in line for line in said)
    said.clear()
    assert built(tiny(module), said.append) == first
    assert said == []
    assert built(tiny(module, "goodbye"), silent) != first
    (module / "main.go").write_text(PROGRAM + "// changed\n")
    assert built(tiny(module), silent) != first
    assert not list(first.parent.glob(".building-*"))


def test_a_failed_build_says_why_and_leaves_nothing_half_built(module: Path, tmp_path: Path) -> None:
    (module / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    with pytest.raises(BinariesError, match="undefined: undefined"):
        built(tiny(module), silent)
    folders = [path for path in (tmp_path / "cache" / "bin").iterdir() if path.is_dir()]
    assert folders == []


def test_builders_at_the_same_time_share_one_build(module: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(module)]
    builders = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [builder.communicate(timeout=60) for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    assert len({folder for folder, _ in outputs}) == 1
    assert sum(progress.count("built in") for _, progress in outputs) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_leaves_no_process_and_no_file(
    module: Path, tmp_path: Path, number: signal.Signals
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # Nothing is compiled yet, so that this takes long enough to be interrupted in the middle.
    environment = {**os.environ, "GOCACHE": str(tmp_path / "gocache"), "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", BUILDER, str(module)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as builder:
        assert builder.stderr is not None
        assert any("compiling" in line for line in builder.stderr)
        # Go and the compilers that it starts.
        below = until(
            lambda: found if len(found := psutil.Process(builder.pid).children(recursive=True)) > 1 else [], END_SECONDS
        )
        builder.send_signal(number)
        builder.wait(END_SECONDS)
    until(lambda: all(has_ended(process) for process in below), END_SECONDS, "the end of all")
    assert list(scratch.iterdir()) == []
    folder = built(Recipe("tiny", module, ".", ("-s",), "tiny"), silent)
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f".{folder.name}.lock"}


def test_without_a_new_enough_go_on_path_the_pinned_wheel_is_chosen(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old" / "go"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho go1.19.8\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(old.parent))
    chosen = find_toolchain(module)
    assert chosen.from_wheel
    assert chosen.version == f"go{WHEEL_VERSION}"
    assert str(tmp_path / "cache") in str(chosen.go)
    old.write_text("#!/bin/sh\necho go1.27.1\n")
    assert find_toolchain(module).go == old
