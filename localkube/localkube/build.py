"""Builds a Go module into a folder of the cache. The content names the folder, so a machine builds it at most once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localkube.errors import BinariesError
from localkube.locks import exclusive_lock
from localkube.paths import cache_root
from localkube.processes import tied_to_parent
from localkube.progress import Progress
from localkube.toolchain import Toolchain, find_toolchain

_REPORT_SECONDS = 5.0
_LIST_SECONDS = 900
_BUILD_SECONDS = 3600
_TAIL_LINES = 30


@dataclass(frozen=True)
class Recipe:
    """How to build one binary from one module."""

    title: str
    module: Path
    package: str
    ldflags: Sequence[str]
    binary: str
    links: Sequence[str] = ()
    """Further names of the binary: links beside it."""


def built(recipe: Recipe, progress: Progress) -> Path:
    """The folder with the recipe's binary and links; builds it unless an earlier run did.

    Raises BinariesError if there is no toolchain or the build fails.
    """
    toolchain = find_toolchain(recipe.module)
    folder = cache_root() / "bin" / _content_key(recipe, toolchain)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.with_name(f".{folder.name}.lock"), what=f"building {recipe.title}", progress=progress):
        if not folder.exists():
            toolchain.install(progress)
            _build_into(folder, recipe, toolchain, progress)
    return folder


def _content_key(recipe: Recipe, toolchain: Toolchain) -> str:
    digest = hashlib.sha256()
    for path in sorted(recipe.module.iterdir()):
        if path.suffix == ".go" or path.name in {"go.mod", "go.sum"}:
            digest.update(f"{path.name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    described = (recipe.package, *recipe.ldflags, recipe.binary, *recipe.links)
    digest.update("\0".join((*described, toolchain.version, platform.system(), platform.machine())).encode())
    return f"{recipe.binary}-{digest.hexdigest()[:20]}"


def _build_into(folder: Path, recipe: Recipe, toolchain: Toolchain, progress: Progress) -> None:
    started = time.monotonic()
    mark = f".building-{folder.name}-"
    for left in folder.parent.glob(f"{mark}*"):  # from a build that was killed; this process holds the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=mark) as scratch:
        output = Path(scratch) / folder.name
        output.mkdir()
        work = Path(scratch) / "work"
        work.mkdir()
        progress(f"{recipe.title}: fetching Go modules with {toolchain.version}")
        go = _Go(toolchain, recipe, work)
        packages = go.run(["list", "-deps", recipe.package], _LIST_SECONDS, _Lines(recipe, progress))
        flags = ["build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", " ".join(recipe.ldflags)]
        lines = _Lines(recipe, progress, total=len(packages))
        progress(f"{recipe.title}: compiling {len(packages)} packages (minutes the first time)")
        go.run([*flags, "-o", str(output / recipe.binary), recipe.package], _BUILD_SECONDS, lines)
        for name in recipe.links:
            (output / name).symlink_to(recipe.binary)
        output.rename(folder)
    progress(f"{recipe.title}: built in {time.monotonic() - started:.0f} s, kept in {folder}")


class _Lines:
    """Reads the output of the go command, and reports progress every few seconds even if there is none."""

    def __init__(self, recipe: Recipe, progress: Progress, total: int | None = None) -> None:
        self.tail: list[str] = []
        self._recipe = recipe
        self._progress = progress
        self._total = total
        self._count = 0

    def drain(self, stream: Iterable[str]) -> None:
        for line in stream:
            self._count += 1
            self.tail = [*self.tail[-_TAIL_LINES:], line.rstrip()]

    def report(self) -> None:
        if self._total is None:
            self._progress(f"{self._recipe.title}: fetched {self._count} modules")
        else:
            last = self.tail[-1] if self.tail else "linking"
            self._progress(f"{self._recipe.title}: compiled {self._count} of at most {self._total} packages ({last})")


@dataclass(frozen=True)
class _Go:
    """The go command for one recipe. It ends with this process and keeps its temporary files in `work`."""

    toolchain: Toolchain
    recipe: Recipe
    work: Path

    def run(self, arguments: Sequence[str], limit_seconds: float, lines: _Lines) -> list[str]:
        """Run the go command and return the lines that it prints. Raises BinariesError if it fails.

        `arguments` begin with the go command's verb. After `limit_seconds` it has failed. `lines` reads its
        standard error, and the error's message has the end of that.
        """
        with subprocess.Popen(
            [str(self.toolchain.go), *arguments],
            cwd=self.recipe.module,
            env=self._environment(),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=tied_to_parent(signal.SIGKILL),  # noqa: PLW1509 - two system calls, safe beside other threads
        ) as process:
            printed: list[str] = []
            readers = [
                threading.Thread(target=lines.drain, args=(process.stderr or (),), daemon=True),
                threading.Thread(target=printed.extend, args=(process.stdout or (),), daemon=True),
            ]
            for reader in readers:
                reader.start()
            try:
                _wait(process, limit_seconds, lines)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)  # with its compilers, before their folder is removed
                raise
            for reader in readers:
                reader.join()
        if process.returncode != 0:
            end = "\n".join(lines.tail)
            raise BinariesError(f"{self.recipe.title}: `go {arguments[0]}` ended with {process.returncode}:\n{end}")
        return printed

    def _environment(self) -> dict[str, str]:
        own = {
            "CGO_ENABLED": "0",
            "GOTOOLCHAIN": "local",
            "GOFLAGS": "-mod=readonly",
            "GOWORK": "off",
            "GOTMPDIR": str(self.work),
        }
        return {**os.environ, **own}


def _wait(process: subprocess.Popen[str], limit_seconds: float, lines: _Lines) -> None:
    deadline = time.monotonic() + limit_seconds
    while True:
        try:
            process.wait(timeout=_REPORT_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise BinariesError(f"the go command ran longer than {limit_seconds:.0f} s") from None
            lines.report()
        else:
            return
