"""The operator dies or is away: nothing restarts twice, healthy training goes on, and whatever waited is done later."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast_contract.reasons import Cause
from tests.support.cluster import processes
from tests.support.cluster.job import START_SECONDS, Job, Script
from tests.support.cluster.world import World
from tests.support.polling import until

JobMaker = Callable[..., Job]
NOTICE = "karpenter.sh/disrupted"
KILLS = 3
LONGEST_PAUSE_SECONDS = 3.0
"""Between two kills. An operator needs about 2 s to its first pass, so some die before they do anything."""


@contextmanager
def killing_the_operator(world: World, seed: int) -> Iterator[list[float]]:
    """Kill the operator at random instants from now on. Yields the pauses before each kill."""
    draw, pauses = random.Random(seed), list[float]()
    stop = threading.Event()

    def run() -> None:
        while len(pauses) < KILLS and not stop.wait(pause := draw.uniform(0.0, LONGEST_PAUSE_SECONDS)):
            if world.kill_operator():
                pauses.append(round(pause, 2))

    thread = threading.Thread(target=run, name="killer", daemon=True)
    thread.start()
    try:
        yield pauses
        thread.join(START_SECONDS)
    finally:
        stop.set()


def test_kills_at_random_instants_change_nothing(
    world: World, make_job: JobMaker, undisturbed: Callable[[int], str]
) -> None:
    """A crash, then a notice, each while the operator is killed again and again: both count once, no bit differs."""
    job = make_job(Script.tiny(steps=500), every_steps=25).apply()
    job.until_step(5)
    with killing_the_operator(world, seed=1) as pauses:
        processes.kill_trainer(job.uid, 1)
    status = job.until_trains(2)
    assert len(pauses) == KILLS
    assert status.restarts == {Cause.FAILURE: 1}, f"pauses between kills: {pauses}"
    node = job.pods()[1]["spec"]["nodeName"]
    try:
        with killing_the_operator(world, seed=2) as pauses:
            world.kubectl("taint", "node", node, f"{NOTICE}=:NoSchedule")
        status = job.until_trains(3)
    finally:
        world.kubectl("taint", "node", node, f"{NOTICE}-")
    assert len(pauses) == KILLS
    assert status.restarts == {Cause.FAILURE: 1, Cause.PREEMPTION: 1}, f"pauses between kills: {pauses}"
    assert job.digest() == undisturbed(500)
    assert (job.status.attempt, job.status.restarts) == (3, status.restarts)


def test_without_an_operator_training_goes_on_and_what_ends_waits(
    world: World, make_job: JobMaker, undisturbed: Callable[[int], str]
) -> None:
    job = make_job(Script.tiny(steps=220), every_steps=10).apply()
    job.until_step(15)
    uid, pods, step = job.uid, job.pod_uids(), job.status.step

    def newest() -> tuple[int, int]:
        ref = job.run_folder.candidates(1)[0]
        return ref.attempt, ref.step

    # A crash waits: no trainer runs and no attempt begins until the operator is back.
    with world.operator_away():
        until(lambda: newest() >= (1, step + 15), 20.0, "checkpoints of healthy training")
        processes.kill_trainer(uid, 1)
        until(lambda: not processes.trainers(uid), 30.0, "the other rank follows")
        left = newest()
        assert processes.agents(uid).keys() == {0, 1}, "the pods wait"
    status = job.until_trains(2)
    assert (status.restarts, job.pod_uids()) == ({Cause.FAILURE: 1}, pods), "recovered in place, once"
    assert status.checkpoint("restored") == left

    # SIGTERM saves: the pod is told to end, nobody is there to be asked.
    job.until_step(left[1] + 5, attempt=2)
    with world.operator_away():
        name = job.pods()[1]["metadata"]["name"]
        world.kubectl("delete", "pod", "-n", job.namespace, name)
        until(lambda: newest()[0] == 2 and not processes.trainers(uid), 20.0, "a save, and the end of both trainers")
        saved = newest()
        trained = re.findall(r"^step (\d+)$", job.log(0).rpartition("attempt 2 begins")[2], re.MULTILINE)
        assert max(map(int, trained)) <= saved[1], (
            "every step is saved, not merely those of the save that was due anyway"
        )
    status = job.until_trains(3)
    assert status.checkpoint("restored") == saved
    # Of a pod that is gone without a trace nobody can say more than that; it costs no budget either.
    assert status.restarts == {Cause.FAILURE: 1, Cause.POD_LOST: 1}, job.describe()
    assert len(status.raw["failureTimes"]) == 1
    assert job.digest() == undisturbed(220)
