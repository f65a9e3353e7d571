"""What no unit test can do, tried, so that the guard of this folder is known to work."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable

import jax
import pytest

from tests.support import virtual_time
from tests.unit.conftest import GUARD


def started() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def forked() -> None:
    if os.fork() == 0:
        os._exit(0)


def forked_by_multiprocessing() -> None:
    multiprocessing.get_context("fork").Process(target=int).start()


def slept() -> None:
    time.sleep(0.001)


def ran_in_real_time() -> None:
    asyncio.Runner().get_loop()


def compiled() -> None:
    jax.jit(lambda x: x + 1)(1)


@pytest.mark.parametrize(
    ("attempt", "named"),
    [
        (started, "starts a process"),
        (forked, "starts a process"),
        (forked_by_multiprocessing, "starts a process"),
        (slept, "sleeps for 0.001 s"),
        (ran_in_real_time, "runs an event loop in real time"),
        (compiled, "compiles with JAX"),
    ],
)
def test_a_unit_test_cannot(attempt: Callable[[], None], named: str) -> None:
    with pytest.raises(AssertionError, match=f"a unit test {named}"):
        attempt()
    assert named in GUARD.found.pop()


def test_what_a_test_swallows_fails_it_at_its_end() -> None:
    def swallowing() -> None:
        with GUARD.watch():
            try:
                time.sleep(1)
            except AssertionError:
                return

    with pytest.raises(AssertionError, match="sleeps for 1 s"):
        swallowing()
    GUARD.found.clear()


def test_an_hour_of_virtual_time_passes_at_once_and_in_order() -> None:
    order: list[float] = []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(virtual_time.now())

    async def scenario() -> float:
        await asyncio.gather(wait(3600), wait(60))
        return virtual_time.now()

    assert virtual_time.run(scenario()) == pytest.approx(3600)
    assert order == pytest.approx([60, 3600])


def test_a_wait_that_nothing_ends_is_an_error_and_no_hang() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="none of them for time to pass"):
        virtual_time.run(scenario())
