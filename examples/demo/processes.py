"""Finds and kills processes of pods on this machine, as a kernel, a cable or a person would."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil

from holdfast_contract import keys


def trainers(job: str) -> dict[int, psutil.Process]:
    """The running trainer process of each rank of a job."""
    found: dict[int, psutil.Process] = {}
    for process, environment in _with_environment():
        if environment.get(keys.ENV_JOB_NAME) == job and keys.ENV_ATTEMPT in environment:
            rank = int(environment[keys.ENV_PROCESS_INDEX])
            # The oldest process of a rank is the trainer; the others are its children.
            if rank not in found or process.create_time() < found[rank].create_time():
                found[rank] = process
    return found


def kill_trainer(job: str, rank: int) -> None:
    """SIGKILL one rank's trainer. Raises LookupError if it does not run."""
    running = trainers(job)
    if rank not in running:
        raise LookupError(f"trainer of {job}: rank {rank} is not running, only {sorted(running)}")
    os.kill(running[rank].pid, signal.SIGKILL)


def kill_operators(api_port: int) -> int:
    """SIGKILL every operator process that reaches its API server at a port, so those of one cluster; how many."""
    running = [
        process
        for process, environment in _with_environment()
        if environment.get("KUBERNETES_SERVICE_PORT") == str(api_port) and _is_operator(process)
    ]
    for process in running:
        process.kill()
    return len(running)


def _is_operator(process: psutil.Process) -> bool:
    try:
        return "holdfast_operator" in process.cmdline()
    except psutil.Error:
        return False


def _with_environment() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    for process in psutil.process_iter():
        try:
            yield process, process.environ()
        except (psutil.Error, OSError):
            continue


def stop_trainers(job: str) -> None:
    """SIGSTOP all trainers of a job, so that nothing moves while a fault is prepared."""
    for process in trainers(job).values():
        process.send_signal(signal.SIGSTOP)


def continue_trainers(job: str) -> None:
    """SIGCONT the trainers of a job that still run."""
    for process in trainers(job).values():
        process.send_signal(signal.SIGCONT)
