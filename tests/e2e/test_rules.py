"""A job whose manifest alone says what is saved, kept and healthy, and how its failures reach the next attempt."""

from __future__ import annotations

import json
from collections.abc import Callable

from holdfast_contract import keys
from holdfast_contract.manifest import HEALTHY_METRIC, Manifest
from tests.support.cluster import processes
from tests.support.cluster.job import Job, Script
from tests.support.polling import until

JobMaker = Callable[..., Job]
STEPS = 150
CHECKPOINT = {
    "every": {
        "anyOf": [
            {"atSteps": [5, 8, 148]},
            {"allOf": [{"steps": 25}, {"steps": 10}]},
            {"adaptive": {"minSeconds": 3000, "maxSeconds": 3600}},
        ]
    },
    "keep": {"latest": 2, "steps": [8], "allOf": [{"everySteps": 50}, {"everySteps": 20}]},
    "healthy": {"finite": ["loss"]},
}


def history(job: Job, index: int) -> dict[str, float]:
    """What the running trainer of a worker was told."""
    found: dict[str, float] = json.loads(processes.trainers(job.uid)[index].process.environ()[keys.ENV_FAILURES])
    return found


def test_the_manifest_alone_says_what_is_saved_and_kept_and_failures_are_told(make_job: JobMaker) -> None:
    job = make_job(Script.tiny(steps=STEPS, step_seconds=0.1), spec={"checkpoint": CHECKPOINT}).apply()
    job.until(lambda s: s.checkpoint("newest") == (1, 50), "the save of step 50")
    assert history(job, 0) == history(job, 1) == {"failures": 0, "running_seconds": 0.0}
    processes.kill_trainer(job.uid, 1)
    status = job.until_trains(2)
    assert status.checkpoint("restored") == (1, 50)
    told = history(job, 0)
    assert told == history(job, 1)
    assert told["failures"] == status.raw["failures"]["count"] == 1
    assert told["running_seconds"] == status.raw["failures"]["runningSeconds"] > 0
    job.until(lambda s: s.holds("Succeeded"), "success")
    left = [(1, 8), (1, 50), (2, 100), (2, 148), (2, 150)]
    until(lambda: sorted(found_in(job)) == left, 30.0, f"checkpoints {left}", seen=lambda: sorted(found_in(job)))
    assert {m.metrics[HEALTHY_METRIC] for m in found_in(job).values()} == {1.0}


def found_in(job: Job) -> dict[tuple[int, int], Manifest]:
    return {(f.ref.attempt, f.ref.step): f.manifest for f in job.run_folder.survey().found}
