"""Finds and kills processes of pods on this machine, to simulate kernel, network and human faults."""

from __future__ import annotations

import signal

from holdfast_contract import keys
from localkube import pod_processes
from localkube.pod_processes import PodProcess


def trainers(job_uid: str) -> dict[int, PodProcess]:
    """Return the running trainer process of each worker: the oldest process of its attempt; the others are its children."""
    found = pod_processes.find({keys.ENV_JOB_UID: job_uid, keys.ENV_ATTEMPT: None})
    return {int(index): one for index, one in pod_processes.first_of_each(keys.ENV_REPLICA_INDEX, found).items()}


def kill_trainer(job_uid: str, worker: int) -> None:
    """SIGKILL one worker's trainer. Raises LookupError if it does not run."""
    running = trainers(job_uid)
    if worker not in running or not pod_processes.send_signal([running[worker]], signal.SIGKILL):
        raise LookupError(f"trainer of worker {worker} is not running, only {sorted(running)}")


def stop_trainers(job_uid: str) -> None:
    """SIGSTOP all trainers of a job, so that nothing changes while a fault is prepared."""
    pod_processes.send_signal(trainers(job_uid).values(), signal.SIGSTOP)


def continue_trainers(job_uid: str) -> None:
    """SIGCONT the trainers of a job that still run."""
    pod_processes.send_signal(trainers(job_uid).values(), signal.SIGCONT)


def kill_operators(api_port: int) -> int:
    """SIGKILL every operator process that uses this API server port, that is, those of one cluster. Returns how many."""
    here = {pod_processes.API_PORT_VARIABLE: str(api_port)}
    return pod_processes.send_signal(pod_processes.find(here, argument="holdfast_operator"), signal.SIGKILL)
