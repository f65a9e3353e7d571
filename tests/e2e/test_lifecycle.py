"""One run and its jobs over time: suspended, contested, deleted in the middle of a save, created again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from holdfast_contract.keys import PARTIAL_FILE
from holdfast_contract.reasons import Cause, Condition, Reason
from tests.support.cluster import processes
from tests.support.cluster.job import GRACE_SECONDS, Job, Script
from tests.support.polling import until

JobMaker = Callable[..., Job]
BOUND_SECONDS = 10.0
"""Beyond the grace period of the save and that of the pods: a late answer, and the work of removing pods."""


def freeze_in_a_save(job: Job) -> tuple[int, int]:
    """Stop all trainers while a checkpoint is being written; its attempt and step."""
    root = job.run_folder.root

    def stopped_in_one() -> Path | None:
        if not list(root.glob(f"*/*/{PARTIAL_FILE}")):
            return None
        for found in processes.trainers(job.uid).values():
            found.process.send_signal(signal.SIGSTOP)
        partial = list(root.glob(f"*/*/{PARTIAL_FILE}"))
        if partial:
            return partial[0]
        thaw(job)
        return None

    found: Path = until(stopped_in_one, 30.0, "a save in flight", seen=job.describe)
    return int(found.parent.parent.name), int(found.parent.name)


def thaw(job: Job) -> None:
    for found in processes.trainers(job.uid).values():
        found.process.send_signal(signal.SIGCONT)


def test_suspend_contest_delete_and_create_again(make_job: JobMaker, undisturbed: Callable[[int], str]) -> None:
    script = Script.tiny(steps=200, more=("--size", "4096"))
    first = make_job(script, name="first", every_steps=7).apply()
    first.until_step(10)

    # A second live job on the same run is refused and waits; the first does not notice.
    second = make_job(script, name="second", every_steps=7).apply()
    message = second.until_condition(Condition.ADMITTED, Reason.FOREIGN_CHECKPOINT_OWNER, value="False")
    assert f"{first.namespace}/first" in message

    # Suspension saves, then gives the pods back; resuming is a new attempt that loses nothing.
    first.patch({"suspend": True})
    first.until_condition(Condition.SUSPENDED, Reason.SUSPENDED_BY_USER, seconds=GRACE_SECONDS + BOUND_SECONDS)
    until(lambda: not first.all_pods(), 2 * GRACE_SECONDS, "the pods are gone", seen=first.describe)
    saved = first.run_folder.candidates(1)[0]
    assert first.status.checkpoint("newest") == (saved.attempt, saved.step)
    assert second.status.attempt == 0, "a suspended owner is still the owner"
    first.patch({"suspend": False})
    status = first.until_trains(2)
    assert status.checkpoint("restored") == (saved.attempt, saved.step)
    assert status.restarts == {Cause.USER_REQUEST: 1}

    # What a person reads of all that: every turn in its order, and of the periodic checkpoints only the first.
    assert [reason for reason, _ in first.events()] == [
        Reason.ACCEPTED,
        Reason.ATTEMPT_STARTED,
        Reason.CHECKPOINT_COMMITTED,
        Reason.SUSPENDING,
        Reason.SUSPENDED_BY_USER,
        Reason.RESUMED,
        Reason.RECOVERING,
        Reason.ATTEMPT_STARTED,
        Reason.CHECKPOINT_RESTORED,
    ]

    # Deletion in the middle of a save: gone within its bounds, the checkpoint whole or absent.
    freeze_in_a_save(first)
    first.delete()
    thaw(first)
    first.wait_gone(2 * GRACE_SECONDS + BOUND_SECONDS)
    survey = second.run_folder.survey()
    assert survey.rejected == ()
    newest = survey.found[0].ref
    assert (newest.attempt, newest.step) > (saved.attempt, saved.step)

    # The one that waited goes on with the run, above every attempt that the run has seen.
    status = second.until_trains(newest.attempt + 1)
    assert status.checkpoint("restored") == (newest.attempt, newest.step)
    assert status.restarts == {}
    assert second.digest() == undisturbed(200)
    until(lambda: second.log(0).rstrip().endswith("exit requested: the job has succeeded"), 10.0, "a true last line")
