"""What users and machines get wrong before training begins, and trainers that misbehave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Reason
from tests.support.cluster import processes
from tests.support.cluster.job import GRACE_SECONDS, Job, Script
from tests.support.polling import until

STUBBORN = """
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for own_session in (False, True):
    subprocess.Popen(["sleep", "3600"], start_new_session=own_session)
print("stubborn", flush=True)
time.sleep(3600)
"""
DELETION_MARGIN_SECONDS = 10.0
"""How long after the grace period a deleted job may still be there: the save's late answer, and the removal of pods."""

JobMaker = Callable[..., Job]


def test_storage_is_named_while_it_is_unusable_and_taken_once_it_is_mended(make_job: JobMaker) -> None:
    job = make_job(
        Script.python("pass"),
        spec={"checkpoint": {"path": "/checkpoints/nested"}, "ttlSecondsAfterFinished": 0},
        read_only=True,
    ).apply()
    unusable = Reason.STORAGE_UNUSABLE
    message = job.until_condition("Admitted", unusable, value="False")
    assert message.startswith("/checkpoints/nested: found nothing"), message
    (job.storage / "nested").mkdir()
    status = job.until(lambda s: "Read-only" in s.condition("Admitted").get("message", ""), "the next problem is named")
    assert status.condition("Admitted")["reason"] == unusable
    assert status.attempt == 0, "no attempt is numbered before storage can be used"
    job.patch({"suspend": True})
    job.until_condition("Suspended", Reason.SUSPENDED_BY_USER)
    until(lambda: not job.all_pods(), 2 * GRACE_SECONDS, "pods of the old template are gone", seen=job.describe)
    job.read_only = False
    job.patch({"suspend": False, "template": job.manifest()["spec"]["template"]})
    # It succeeds at once and its time to live is 0 s: the operator deletes it.
    until(lambda: job.get() is None, 40.0, "the finished job is deleted", seen=job.describe)
    assert Reason.COMPLETED in {reason for reason, _ in job.events()}


def test_a_quota_is_named_once_with_a_count_and_the_job_begins_when_there_is_room(make_job: JobMaker) -> None:
    job = make_job(Script.python("pass"))
    kubectl, place = job.world.kubectl, job.namespace
    kubectl("create", "quota", "full", "--hard=pods=0", "-n", place)
    until(lambda: '"hard"' in kubectl("get", "quota", "full", "-n", place, "-o", "jsonpath={.status}"), 20.0, "a quota")
    job.apply()

    def refusals() -> list[dict[str, Any]]:
        return [e for e in job.raw_events() if e["reason"] == Reason.POD_CREATION_FAILED]

    until(lambda: any(e.get("series") for e in refusals()), 30.0, "a repeated refusal", seen=job.describe)
    [refusal] = refusals()
    assert "exceeded quota: full" in refusal["message"]
    assert refusal["series"]["count"] >= 2
    kubectl("delete", "quota", "full", "-n", place)
    job.until(lambda s: s.holds("Succeeded"), "success")


def test_the_failure_budget_is_a_limit(make_job: JobMaker) -> None:
    job = make_job(
        Script.python("import sys; sys.exit('the third line of the budget')"),
        spec={"recovery": {"maxFailures": 2, "noProgressLimit": 10}},
    ).apply()
    message = job.until_condition("Failed", Reason.RESTART_BUDGET_EXHAUSTED)
    status = job.status
    assert "3 failures" in message
    assert "maxFailures allows 2" in message
    assert status.restarts == {"Failure": 2}, "the last failure is not followed by a restart"
    assert (status.raw["lastEnd"]["exitCode"], status.attempt) == (1, 3)
    assert "the third line of the budget" in status.raw["lastEnd"]["lastLines"]
    until(lambda: not processes.trainers(job.uid), 10.0, "no trainer is left")


def test_a_stubborn_trainer_and_its_children_end_with_their_attempt_and_their_job(make_job: JobMaker) -> None:
    job = make_job(Script.python(STUBBORN), pod={"terminationGracePeriodSeconds": 2}).apply()
    uid = until(job.get, 5, "the job")["metadata"]["uid"]

    def family(attempt: int) -> list[psutil.Process]:
        return [f.process for f in processes.of_job(uid) if f.attempt == attempt]

    first = until(
        lambda: len(found := family(1)) == 3 and found, 30.0, "a trainer with two children", seen=job.describe
    )
    pods = job.pod_uids()
    processes.kill_trainer(uid, 0)
    until(lambda: len(family(2)) == 3, 30.0, "the next attempt", seen=job.describe)
    assert not [p for p in first if p.is_running()], "what an attempt started does not outlive it"
    assert job.pod_uids() == pods
    job.delete()
    until(lambda: job.get() is None, 2 + DELETION_MARGIN_SECONDS, "the job is gone", seen=job.describe)
    until(lambda: not processes.of_job(uid), DELETION_MARGIN_SECONDS, "no process is left", seen=lambda: family(2))


def test_an_end_that_no_other_attempt_could_mend_fails_the_job_at_once(make_job: JobMaker) -> None:
    job = make_job(Script.python(f"import sys; sys.exit({int(ExitCode.NO_VALID_CHECKPOINT)})")).apply()
    job.until_condition("Failed", Reason.NO_VALID_CHECKPOINT, seconds=GRACE_SECONDS + 20.0)
    assert job.status.restarts == {}
