"""The processes of pods as this machine sees them: process nodes run pods as real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from holdfast_contract import keys

OPERATOR_NAMESPACE_VARIABLE = "HOLDFAST_OPERATOR_NAMESPACE"


@dataclass(frozen=True)
class Found:
    """A process of a worker pod. ``attempt`` is None for the agent; what a trainer starts has its environment."""

    process: psutil.Process
    index: int
    attempt: int | None


def of_job(uid: str) -> list[Found]:
    """Every process in the pods of a job, oldest first."""
    found = []
    for process, environment in _with_environment():
        if environment.get(keys.ENV_JOB_UID) == uid:
            attempt = environment.get(keys.ENV_ATTEMPT)
            index = int(environment[keys.ENV_REPLICA_INDEX])
            found.append(Found(process, index, int(attempt) if attempt else None))
    return sorted(found, key=lambda f: f.process.create_time())


def trainers(uid: str) -> dict[int, Found]:
    """The trainer of each worker that runs one: the oldest process of its attempt."""
    oldest: dict[int, Found] = {}
    for found in of_job(uid):
        if found.attempt is not None:
            oldest.setdefault(found.index, found)
    return oldest


def agents(uid: str) -> dict[int, psutil.Process]:
    """The agent of each worker."""
    return {f.index: f.process for f in of_job(uid) if f.attempt is None and _runs(f.process, keys.AGENT_MODULE)}


def kill_trainer(uid: str, index: int) -> None:
    """SIGKILL, as the kernel or a person would."""
    running = trainers(uid)
    assert index in running, f"trainer {index} does not run, only {sorted(running)}"
    running[index].process.send_signal(signal.SIGKILL)


def kill_operators(namespace: str, server_url: str) -> int:
    """SIGKILL every operator process in a namespace of one cluster; how many there were. Other clusters run beside."""
    port = str(urlsplit(server_url).port)
    count = 0
    for process, environment in _with_environment():
        here = environment.get("KUBERNETES_SERVICE_PORT") == port
        if here and environment.get(OPERATOR_NAMESPACE_VARIABLE) == namespace and _runs(process, "holdfast_operator"):
            process.kill()
            count += 1
    return count


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        return module in process.cmdline()
    except psutil.Error:
        return False


def _with_environment() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        try:
            process = psutil.Process(pid)
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if environment:
            yield process, environment
