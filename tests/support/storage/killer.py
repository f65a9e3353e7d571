"""Kill a real saving process at a chosen operation on storage.

A server process imports everything once and forks a child per kill (before any backend or thread exists), so a kill
costs a fraction of a second. What is a kill point:

- ``ours``: before and after every durable operation of our own file layer;
- ``python``: before every create, rename, mkdir or removal that other Python code (Orbax) does below the run's folder,
  seen through the interpreter's audit events;
- ``native``: when the n-th new file or folder appears below the run, for TensorStore's writes, which are native code and
  invisible to both; which instant within its write a kill hits is up to the scheduler.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from holdfast.distributed import coordination
from holdfast.distributed.coordination import Coordination
from holdfast.policies.keep_rules import KeepLatest
from holdfast.store import UNPINNED, CheckpointExtras
from holdfast.store.format import fs
from holdfast.store.store_settings import WriterName
from tests.support.storage import states
from tests.support.training.coordinator import coordinator_address

REPOSITORY = Path(__file__).resolve().parents[3]
_WRITING_EVENTS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}


class Killer:
    """The parent's side."""

    def __init__(self) -> None:
        env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.storage.killer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env | {"PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"},
            cwd=REPOSITORY,
            text=True,
        )

    def run(
        self, scenario: str, root: Path, *, kind: str = "", only: str = "", number: int = -1, victim: int | None = None
    ) -> tuple[bool, list[str]]:
        """(killed, operations so far of that kind whose text has ``only``). Without a number: run to the end.

        With ``victim`` two processes run the scenario together and that rank is watched and killed; when it ends by a
        kill, the other is ended too.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        log = root.parent / "operations.log"
        request = {"scenario": scenario, "root": str(root), "kind": kind, "only": only, "number": number}
        request |= {"log": str(log), "ranks": 1 if victim is None else 2, "victim": victim or 0}
        with coordinator_address() as coordinator:
            self._server.stdin.write(json.dumps(request | {"coordinator": coordinator}) + "\n")
            self._server.stdin.flush()
            status = int(self._server.stdout.readline())
        if status not in {0, -signal.SIGKILL}:
            raise AssertionError(f"{scenario} ended with {status}")
        return status == -signal.SIGKILL, log.read_text().splitlines() if log.exists() else []

    def close(self) -> None:
        """End the server."""
        self._server.kill()
        self._server.communicate()


class Trap:
    """Counts operations of one kind and kills this process at the chosen one."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._root, self._kind, self._only = request["root"], request["kind"], request["only"]
        self._number = request["number"]
        self._log = Path(request["log"]).open("w", buffering=1)  # noqa: SIM115  for the life of the process
        self._count = 0
        self._own = threading.local()

    def meet(self, kind: str, label: str) -> None:
        """One operation happens."""
        if kind != self._kind or self._only not in label:
            return
        self._log.write(f"{label}\n")
        if self._count == self._number:
            os.kill(os.getpid(), signal.SIGKILL)
        self._count += 1

    def ours(self, operation: str, path: Path) -> None:
        """The hook of our file layer."""
        self._own.inside = operation.startswith("before:")
        self.meet("ours", f"{operation} {os.path.relpath(path, self._root)}")

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """The interpreter's audit hook."""
        writing = event in _WRITING_EVENTS or (event == "open" and _is_writing(args))
        if not writing or getattr(self._own, "inside", False):
            return
        path = args[0]
        if isinstance(path, str | os.PathLike) and str(path).startswith(self._root):
            self.meet("python", f"{event} {os.path.relpath(path, self._root)}")

    def watch(self) -> None:
        """Poll, without rest, for what appears below the run."""
        seen: set[str] = set()
        while True:
            for folder, folders, files in os.walk(self._root):
                for name in (*folders, *files):
                    path = os.path.join(folder, name)
                    if path not in seen:
                        seen.add(path)
                        self.meet("native", os.path.relpath(path, self._root))


def _is_writing(args: tuple[Any, ...]) -> bool:
    mode, flags = args[1], args[2]
    if isinstance(mode, str) and any(c in mode for c in "wax+"):
        return True
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def save_once(root: Path, shared: Coordination, writer: WriterName = "direct") -> None:
    """A new attempt claims the run, restores and saves step 2."""
    store = states.store_at(root, 2, shared=shared, settings=replace(states.QUICK, writer=writer))
    store.restore(UNPINNED, states.small_state(0))
    store.save(2, states.small_state(2), CheckpointExtras(data=b"2")).result(30)
    store.close()


def save_and_retain(root: Path, shared: Coordination) -> None:
    """A new attempt saves two steps and keeps the last two: the checkpoint of the first attempt is deleted."""
    store = states.store_at(root, 2, retention=KeepLatest(1), shared=shared)
    for step in (2, 3):
        store.save(step, states.small_state(step), CheckpointExtras(data=str(step).encode())).result(30)
    store.close()


SCENARIOS: dict[str, Callable[[Path, Coordination], None]] = {
    "save_once": save_once,
    "save_once_orbax": functools.partial(save_once, writer="orbax"),
    "save_and_retain": save_and_retain,
}


def _child(request: dict[str, Any], rank: int) -> None:
    if request["ranks"] > 1:
        config: Any = jax.config
        config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(request["coordinator"], request["ranks"], rank)
    if rank == request["victim"]:
        trap = Trap(request)
        fs.set_fault_hook(trap.ours)
        if request["kind"] == "python":
            sys.addaudithook(trap.audit)
        if request["kind"] == "native":
            threading.Thread(target=trap.watch, daemon=True).start()
    SCENARIOS[request["scenario"]](Path(request["root"]), coordination.current())


def _fork(request: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _child(request, rank)
            status = 0
        except BaseException:
            traceback.print_exc()  # os._exit would swallow it
        finally:
            sys.stderr.flush()
            os._exit(status)
    return pid


def _run(request: dict[str, Any]) -> int:
    """How the victim ended; when it was killed, so are the others."""
    pids = [_fork(request, rank) for rank in range(request["ranks"])]
    victim = pids.pop(request["victim"])
    _, code = os.waitpid(victim, 0)
    for pid in pids:
        if code != 0:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return -os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)


def serve() -> None:
    """Fork the processes of one scenario per request."""
    import jax._src.xla_bridge as bridge

    assert not bridge._backends, "a backend was started by an import: forking is not safe"
    assert len(os.listdir("/proc/self/task")) == 1, "a thread was started by an import: forking is not safe"
    for line in sys.stdin:
        print(_run(json.loads(line)), flush=True)


if __name__ == "__main__":
    serve()
