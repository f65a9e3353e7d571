"""The work queue: one at a time per key, nothing lost, nobody starved, failures back off."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_contract.reasons import Metric
from holdfast_operator.decide.actions import Count
from holdfast_operator.gateway.kube_errors import TooManyRequests
from holdfast_operator.reconcile.queue import WorkQueue
from tests.support import virtual_time
from tests.support.polling import until_async


class Counts:
    def __init__(self) -> None:
        self.results: Counter[str] = Counter()

    def count(self, count: Count) -> None:
        if count.metric is Metric.RECONCILES:
            self.results[count.labels["result"]] += 1


Work = Callable[[str, str], Awaitable[float | None]]


def play(work: Work, script: Callable[[WorkQueue], Awaitable[None]]) -> Counts:
    counts = Counts()

    async def scenario() -> None:
        queue = WorkQueue(work, counts, clock=virtual_time.now)
        running = asyncio.create_task(queue.run(workers=4))
        try:
            async with asyncio.timeout(10):
                await script(queue)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    virtual_time.run(scenario())
    return counts


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.001, 0.01])), min_size=1, max_size=30))
@settings(max_examples=25, deadline=None)
def test_each_key_is_worked_on_after_its_last_wake_up_and_never_twice_at_once(adds: list[tuple[str, float]]) -> None:
    started: Counter[str] = Counter()
    last_start: dict[str, int] = {}
    inside: Counter[str] = Counter()
    moment = 0

    async def work(_namespace: str, name: str) -> None:
        nonlocal moment
        inside[name] += 1
        assert inside[name] == 1
        moment += 1
        started[name] += 1
        last_start[name] = moment
        await asyncio.sleep(0.002)
        inside[name] -= 1

    async def script(queue: WorkQueue) -> None:
        nonlocal moment
        added = {}
        for name, delay in adds:
            moment += 1
            added[name] = moment
            queue.add("ns", name, delay)
            await asyncio.sleep(0)
        await until_async(lambda: all(last_start.get(n, 0) > at for n, at in added.items()) and not inside.total(), 10)

    play(work, script)


def test_wake_ups_before_the_work_begins_are_one() -> None:
    seen: list[str] = []

    async def work(_namespace: str, name: str) -> None:
        seen.append(name)

    async def script(queue: WorkQueue) -> None:
        for _ in range(100):
            queue.add("ns", "a")
        await until_async(lambda: bool(seen), 10)
        await asyncio.sleep(0.05)

    play(work, script)
    assert seen == ["a"]


def test_the_earlier_of_two_wishes_counts() -> None:
    loop_times: list[float] = []

    async def work(_namespace: str, _name: str) -> None:
        loop_times.append(virtual_time.now())

    async def script(queue: WorkQueue) -> None:
        began = virtual_time.now()
        queue.add("ns", "a", 60)
        queue.add("ns", "a", 0.02)
        queue.add("ns", "a", 30)
        await until_async(lambda: bool(loop_times), 10)
        assert loop_times[0] - began < 1

    play(work, script)


def test_a_failing_key_backs_off_and_the_others_go_on() -> None:
    tries: list[float] = []
    good: list[str] = []

    async def work(_namespace: str, name: str) -> float | None:
        if name == "bad":
            tries.append(virtual_time.now())
            raise RuntimeError("no")
        good.append(name)
        return 0.01

    async def script(queue: WorkQueue) -> None:
        queue.add("ns", "bad")
        queue.add("ns", "good")
        await until_async(lambda: len(tries) == 3, 10)

    counts = play(work, script)
    assert tries[1] - tries[0] >= 0.35
    assert tries[2] - tries[1] >= 0.75
    assert len(good) > 20
    assert counts.results["error"] >= 3


def test_retry_after_is_honoured() -> None:
    tries: list[float] = []

    async def work(_namespace: str, _name: str) -> float | None:
        tries.append(virtual_time.now())
        error = TooManyRequests("create pods", 429)
        error.retry_after_seconds = 1.2
        raise error

    async def script(queue: WorkQueue) -> None:
        queue.add("ns", "a")
        await until_async(lambda: len(tries) == 2, 10)

    play(work, script)
    assert tries[1] - tries[0] >= 1.2


def test_an_urgent_key_overtakes_routine_that_is_due() -> None:
    order: list[str] = []

    async def work(_namespace: str, name: str) -> None:
        order.append(name)
        await asyncio.sleep(1)

    async def script(queue: WorkQueue) -> None:
        for number in range(40):
            queue.add("ns", f"routine-{number}")
        await asyncio.sleep(0.5)
        queue.add("ns", "routine-39", urgent=True)
        queue.add("ns", "report", urgent=True)
        await until_async(lambda: "report" in order, 10)

    play(work, script)
    assert order.index("report") < 8, "of four workers, each was busy once"
    assert order.index("routine-39") < 8, "an urgent wake-up of a key that waits counts, too"


def test_routine_that_has_waited_long_is_not_starved() -> None:
    order: list[str] = []

    async def work(_namespace: str, name: str) -> None:
        order.append(name)
        await asyncio.sleep(1)

    async def script(queue: WorkQueue) -> None:
        for round_number in range(9):
            for number in range(4):
                queue.add("ns", f"report-{round_number}-{number}", urgent=True)
            if not round_number:
                queue.add("ns", "routine")
            await asyncio.sleep(0.9)
        await until_async(lambda: "routine" in order, 10)

    play(work, script)
    assert 4 <= order.index("routine") <= 28, order
