"""The processes of Holdfast's pods as this machine sees them."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import psutil

from holdfast_contract import keys
from localkube import pod_processes
from localkube.pod_processes import PodProcess

OPERATOR_NAMESPACE_VARIABLE = "HOLDFAST_OPERATOR_NAMESPACE"


@dataclass(frozen=True)
class Found:
    """A process of a worker pod. ``attempt`` is None for the agent; what a trainer starts has its environment."""

    pod_process: PodProcess
    index: int
    attempt: int | None

    @property
    def process(self) -> psutil.Process:
        """The process itself."""
        return self.pod_process.process


def of_job(uid: str) -> list[Found]:
    """Every process in the pods of a job, oldest first."""
    return [_found(one) for one in pod_processes.find({keys.ENV_JOB_UID: uid})]


def trainers(uid: str) -> dict[int, Found]:
    """The trainer of each worker that runs one: the oldest process of its attempt."""
    found = pod_processes.find({keys.ENV_JOB_UID: uid, keys.ENV_ATTEMPT: None})
    return {int(i): _found(one) for i, one in pod_processes.first_of_each(keys.ENV_REPLICA_INDEX, found).items()}


def agents(uid: str) -> dict[int, psutil.Process]:
    """The agent of each worker."""
    found = [_found(one) for one in pod_processes.find({keys.ENV_JOB_UID: uid}, argument=keys.AGENT_MODULE)]
    return {one.index: one.process for one in found if one.attempt is None}


def kill_trainer(uid: str, index: int) -> None:
    """SIGKILL, as the kernel or a person would."""
    running = trainers(uid)
    assert index in running, f"trainer {index} does not run, only {sorted(running)}"
    assert pod_processes.send_signal([running[index].pod_process], signal.SIGKILL), f"trainer {index} has just ended"


def kill_operators(namespace: str, api_port: int) -> int:
    """SIGKILL every operator process in a namespace of one cluster; how many there were. Other clusters run beside."""
    here = {pod_processes.API_PORT_VARIABLE: str(api_port), OPERATOR_NAMESPACE_VARIABLE: namespace}
    return pod_processes.send_signal(pod_processes.find(here, argument="holdfast_operator"), signal.SIGKILL)


def _found(one: PodProcess) -> Found:
    attempt = one.environment.get(keys.ENV_ATTEMPT)
    return Found(one, int(one.environment[keys.ENV_REPLICA_INDEX]), int(attempt) if attempt else None)
