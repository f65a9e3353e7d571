"""Ctrl-C, SIGTERM or SIGKILL ends a test run or a command: no process, mount or file is left of its cluster and pods."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.polling import until

START_SECONDS = 60.0
GONE_SECONDS = 30.0

RUN = """
import json, os, pathlib, threading, time

POD = json.loads(os.environ["TEST_POD"])

def test_that_is_interrupted(local_cluster, namespace):
    local_cluster.add_node("only")
    config = ["create", "configmap", "c", "--from-literal=k=v", "-n", namespace]
    local_cluster.kubectl(*config)
    local_cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(POD))
    local_cluster.kubectl("wait", "pod/p", "-n", namespace, "--for=condition=Ready", "--timeout=30s")
    pathlib.Path("running").touch()
    threading.Event().wait(1000)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that holds all that localkube keeps on disk; its path is short, as those of sockets must be."""
    folder = Path(tempfile.mkdtemp(prefix="lk-"))
    yield folder
    for line in related(str(folder)):  # what a failed test left
        with suppress(ProcessLookupError):
            os.kill(int(line.partition(" ")[0]), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python command as a shell does, in a process group of its own."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, **environment: str) -> subprocess.Popen[str]:
        own = {"TMPDIR": str(place), "XDG_RUNTIME_DIR": str(place), **environment}
        process = subprocess.Popen([sys.executable, *words], cwd=place, env={**os.environ, **own}, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=GONE_SECONDS)


def related(*texts: str) -> list[str]:
    """Command lines of processes that name any of the texts, or whose environment does."""
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(text in word for text in texts for word in words):
            found.append(f"{process.pid} {' '.join(words)[:200]}")
    return found


def interrupt(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Ctrl-C goes to all that the terminal runs; any other signal to the one process."""
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


def assert_nothing_left(place: Path, mark: str) -> None:
    until(lambda: not related(str(place), mark), GONE_SECONDS, "no process", seen=lambda: related(str(place), mark))
    registry = place / f"localkube-{os.getuid()}"
    until(lambda: {registry}.issuperset(place.rglob("*")), GONE_SECONDS, "no file", seen=lambda: list(place.rglob("*")))
    assert str(place) not in Path("/proc/self/mountinfo").read_text()


def pod(mark: str) -> dict[str, Any]:
    """A pod that ignores SIGTERM and has children outside of its process group, and mounts."""
    script = "trap '' TERM; (setsid sleep 1000 &); touch /e/f; while :; do sleep 0.1; done"
    container = {
        "name": "main",
        "image": "localkube/host",
        "command": ["sh", "-c", script],
        "env": [{"name": "MARK", "value": mark}],
        "volumeMounts": [{"name": "e", "mountPath": "/e"}, {"name": "c", "mountPath": "/e/c"}],
    }
    volumes = [{"name": "e", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 60}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_test_run_that_is_ended_leaves_nothing(
    place: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    mark = f"localkube-{uuid.uuid4().hex}"
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["localkube.pytest_plugin"]\n')
    (tmp_path / "test_run.py").write_text(RUN.replace('Path("running")', f"Path({str(tmp_path / 'running')!r})"))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(tmp_path / "pytest.ini"), str(tmp_path)]
    run = start(*words, TEST_POD=json.dumps(pod(mark)))
    until(lambda: (tmp_path / "running").exists() or run.poll() is not None, START_SECONDS, "a pod runs")
    assert run.poll() is None, run.stdout and run.stdout.read()
    assert len(related(mark)) >= 2
    interrupt(run, number)
    run.wait(GONE_SECONDS)
    assert_nothing_left(place, mark)


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("starting kube-apiserver", signal.SIGKILL),
        ("starting kube-apiserver", signal.SIGINT),
        ("starting node-1", signal.SIGTERM),
        ("starting node-1", signal.SIGINT),
    ],
)
def test_an_interrupted_up_leaves_nothing(
    place: Path, start: Callable[..., subprocess.Popen[str]], moment: str, number: signal.Signals
) -> None:
    name = f"up-{uuid.uuid4().hex[:8]}"
    up = start("-m", "localkube", "up", "--name", name, "--nodes", "1")
    assert up.stdout is not None
    assert any(moment in line for line in up.stdout)
    interrupt(up, number)
    said = up.stdout.read()
    assert up.wait(GONE_SECONDS) == (130 if number is signal.SIGINT else -number), said
    if number is signal.SIGINT:
        assert said.splitlines()[-1] == "localkube: interrupted; nothing is left behind"
        assert related(str(place), name) == []
    assert_nothing_left(place, name)
