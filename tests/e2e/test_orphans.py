"""Nobody is there to restart a trainer that has ended: its pod gives its machine back, and the job recovers later."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Cause
from localkube import binaries
from tests.support.cluster import processes
from tests.support.cluster.job import Job, Script
from tests.support.cluster.world import CHART, HELM_SECONDS, RELEASE, SYSTEM, World
from tests.support.polling import until

JobMaker = Callable[..., Job]
LIMIT_SECONDS = 10
STEP_SECONDS = 0.05
STEPS = 500


def configure(world: World, seconds: int) -> None:
    """What an administrator does to set the limit of pods to come."""
    command = [
        str(binaries.helm()), "upgrade", RELEASE, str(CHART), f"--kubeconfig={world.cluster.kubeconfig}",
        "--namespace", SYSTEM, "--reuse-values", "--set", f"orphanSeconds={seconds}",
        "--wait", "--timeout", f"{HELM_SECONDS}s",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=HELM_SECONDS + 30, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{world.logs()}"
    world.wait_operator()


@pytest.fixture
def limit(world: World) -> Iterator[int]:
    configure(world, LIMIT_SECONDS)
    yield LIMIT_SECONDS
    configure(world, 900)


def ended(job: Job) -> dict[int, dict[str, Any]]:
    """How the trainer container of each ended pod ended."""
    states = {i: p["status"]["containerStatuses"][0]["state"] for i, p in job.pods().items()}
    return {i: state["terminated"] for i, state in states.items() if "terminated" in state}


@pytest.mark.timeout(240)  # it sits out the limit twice
def test_orphans_end_by_themselves_and_the_job_goes_on_when_the_operator_returns(
    world: World, make_job: JobMaker, limit: int, undisturbed: Callable[[int], str]
) -> None:
    job = make_job(Script.tiny(steps=STEPS, step_seconds=STEP_SECONDS), every_steps=10).apply()
    uid, before, step = job.until_step(10) and job.uid, job.pod_uids(), job.status.step

    def newest() -> tuple[int, int]:
        ref = job.run_folder.candidates(1)[0]
        return ref.attempt, ref.step

    with world.operator_away():
        healthy = step + round(1.5 * limit / STEP_SECONDS)
        until(lambda: newest() >= (1, healthy), 6.0 * limit, "training for longer than the limit", seen=job.describe)
        processes.kill_trainer(uid, 1)
        until(lambda: not processes.trainers(uid), 30.0, "the other rank follows")
        left = newest()
        assert processes.agents(uid).keys() == {0, 1}, (
            "the limit begins when the trainer ends, not when the operator does"
        )
        until(lambda: len(ended(job)) == 2, limit + 30.0, "both pods end", seen=job.describe)
        for end in ended(job).values():
            assert end["exitCode"] == ExitCode.ORPHANED
            assert f"the operator could not be reached for {limit} s" in end["message"]
        assert not processes.of_job(uid)
        assert newest() == left
    status = job.until_trains(2)
    assert status.restarts == {Cause.ORPHANED: 1}, job.describe()
    assert not status.raw.get("failureTimes"), "an absent operator costs no budget"
    assert status.checkpoint("restored") == left
    assert not set(job.pod_uids().values()) & set(before.values())
    assert job.digest() == undisturbed(STEPS)
