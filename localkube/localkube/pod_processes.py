"""The processes of pods as this machine sees them: process nodes run a pod's containers as real processes.

They are found by their environment, which a pod's author and the node write: a name by `fieldRef`, the port of the API
server. What a container starts inherits it, so a selector finds the children, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import psutil

API_PORT_VARIABLE = "KUBERNETES_SERVICE_PORT"
"""In every container of a process node; on one machine it tells the clusters apart."""

Selector = Mapping[str, str | None]
"""The value that an environment variable must have; None: any."""


@dataclass(frozen=True)
class PodProcess:
    """A process and the environment that it was started with."""

    process: psutil.Process
    environment: Mapping[str, str]
    started_at: float
    """Seconds since the epoch, in steps of the kernel's clock tick."""

    def has_argument(self, word: str) -> bool:
        """Whether a word of its command line is exactly this one; false once it has ended."""
        try:
            return word in self.process.cmdline()
        except psutil.Error:
            return False


def find(selector: Selector, *, argument: str | None = None) -> list[PodProcess]:
    """Every other process with these environment variables (and this argument), oldest first.

    Only processes whose environment this user may read: the user's own, as pods of the user's nodes are.

    Raises ValueError for an empty selector: it would choose every process of the machine.
    """
    if not selector:
        raise ValueError("selector is empty, must name at least one environment variable")
    found = [one for one in _readable() if _fits(selector, one.environment)]
    if argument is not None:
        found = [one for one in found if one.has_argument(argument)]
    return sorted(found, key=lambda one: (one.started_at, one.process.pid))


def first_of_each(variable: str, found: Iterable[PodProcess]) -> dict[str, PodProcess]:
    """Of each value of a variable the first process; given oldest first, the others are what that one started."""
    firsts: dict[str, PodProcess] = {}
    for one in found:
        if variable in one.environment:
            firsts.setdefault(one.environment[variable], one)
    return firsts


def send_signal(found: Iterable[PodProcess], number: int) -> int:
    """Signal processes; returns how many there were. One that has ended meanwhile is not counted, nor is its number's heir hit."""
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
        except (psutil.Error, OSError):  # it has ended, or belongs to somebody else
            continue
