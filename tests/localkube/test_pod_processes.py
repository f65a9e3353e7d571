"""Processes are chosen by their environment, and a signal reaches those that still run, and nobody else."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from localkube.pod_processes import find, first_of_each, send_signal
from tests.support.polling import until

MARK, INDEX = "LOCALKUBE_TEST_MARK", "LOCALKUBE_TEST_INDEX"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
GONE_SECONDS = 10.0

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def start(mark: str) -> Iterator[Start]:
    """Starts a process with the test's mark in its environment; all that carry it are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code, *words], env={**os.environ, MARK: mark, **environment})
        started.append(process)
        return process

    yield begin
    send_signal(find({MARK: mark}), signal.SIGKILL)
    for process in started:
        process.wait(GONE_SECONDS)


def poll_for(count: int, selector: dict[str, str | None]) -> list[int]:
    """Ids of what is found, once it is so many."""
    found = until(
        lambda: found if len(found := find(selector)) == count else [],
        GONE_SECONDS,
        f"{count} processes",
        seen=lambda: find(selector),
    )
    return [one.process.pid for one in found]


def test_a_selector_finds_parents_and_children_oldest_first(start: Start, mark: str) -> None:
    parents = [start(PARENT, **{INDEX: str(index)}) for index in range(2)]
    start("import time; time.sleep(60)")
    poll_for(5, {MARK: mark})
    assert len(poll_for(4, {MARK: mark, INDEX: None})) == 4
    assert poll_for(2, {MARK: mark, INDEX: "1"})[0] == parents[1].pid
    firsts = first_of_each(INDEX, find({MARK: mark}))
    assert {index: one.process.pid for index, one in firsts.items()} == {"0": parents[0].pid, "1": parents[1].pid}
    assert find({MARK: mark, INDEX: "2"}) == []


def test_an_argument_is_compared_as_a_whole_word(start: Start, mark: str) -> None:
    wanted = start("import time; time.sleep(60)", "operator")
    start("import time; time.sleep(60)", "operators")
    poll_for(2, {MARK: mark})
    assert [one.process.pid for one in find({MARK: mark}, argument="operator")] == [wanted.pid]


def test_an_empty_selector_is_refused(mark: str) -> None:
    with pytest.raises(ValueError, match="selector is empty, must name at least one environment variable"):
        find({})
    assert find({MARK: mark}) == []


def test_a_signal_counts_only_those_that_still_run(start: Start, mark: str) -> None:
    living, dead = (start("import time; time.sleep(60)") for _ in range(2))
    poll_for(2, {MARK: mark})
    found = find({MARK: mark})
    dead.kill()
    dead.wait(GONE_SECONDS)
    assert send_signal(found, signal.SIGTERM) == 1
    assert living.wait(GONE_SECONDS) == -signal.SIGTERM
    assert send_signal(found, signal.SIGTERM) == 0
