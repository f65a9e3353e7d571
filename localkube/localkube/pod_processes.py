"""Finds the processes of pods on this machine: process nodes run a pod's containers as real processes.

A process is found by its environment, which the pod's author and the node write: for example a name by `fieldRef`, or the
port of the API server. Child processes inherit it, so a selector finds them too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import psutil

API_PORT_VARIABLE = "KUBERNETES_SERVICE_PORT"
"""Every container of a process node has it. On one machine its value tells clusters apart."""

Selector = Mapping[str, str | None]
"""The value that each environment variable must have; None allows any value."""


@dataclass(frozen=True)
class PodProcess:
    """A process and the environment at its start."""

    process: psutil.Process
    environment: Mapping[str, str]
    started_at: float
    """Seconds since the epoch, in steps of the kernel's clock tick."""

    def has_argument(self, word: str) -> bool:
        """Whether one word of its command line equals `word`; false once it has ended."""
        try:
            return word in self.process.cmdline()
        except psutil.Error:
            return False


def find(selector: Selector, *, argument: str | None = None) -> list[PodProcess]:
    """Every other process with these environment variables, oldest first; with `argument`, only those that have it.

    It finds only processes whose environment this user may read. Those of pods on the user's own nodes are among them.
    Raises ValueError for an empty selector, which would select every process of the machine.
    """
    if not selector:
        raise ValueError("selector is empty, must name at least one environment variable")
    found = [one for one in _readable() if _fits(selector, one.environment)]
    if argument is not None:
        found = [one for one in found if one.has_argument(argument)]
    return sorted(found, key=lambda one: (one.started_at, one.process.pid))


def first_of_each(variable: str, found: Iterable[PodProcess]) -> dict[str, PodProcess]:
    """The first process for each value of a variable. If `found` is oldest first, that process started the others."""
    firsts: dict[str, PodProcess] = {}
    for one in found:
        if variable in one.environment:
            firsts.setdefault(one.environment[variable], one)
    return firsts


def send_signal(found: Iterable[PodProcess], number: int) -> int:
    """Signal the processes that still run and return how many there were. A new process with an old id gets no signal."""
    count = 0
    for one in found:
        try:
            one.process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
        count += 1
    return count


def _fits(selector: Selector, environment: Mapping[str, str]) -> bool:
    return all(
        key in environment if value is None else environment.get(key) == value for key, value in selector.items()
    )


def _readable() -> Iterator[PodProcess]:
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        try:
            process = psutil.Process(pid)
            yield PodProcess(process, process.environ(), process.create_time())
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
