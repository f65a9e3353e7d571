"""Notices from the platform and what becomes of the save, seen from outside."""

from __future__ import annotations

import signal
from collections.abc import Callable

from holdfast_contract.reasons import Cause, Condition, Reason, SaveOutcome
from tests.support.cluster import processes
from tests.support.cluster.job import GRACE_SECONDS, Job, Script
from tests.support.cluster.world import NODES, World
from tests.support.polling import until

JobMaker = Callable[..., Job]
MATCHERS = {
    "notices": [
        {"name": "roomy", "annotation": {"key": "example.com/roomy"}, "deadlineSeconds": 60},
        {"name": "hasty", "annotation": {"key": "example.com/hasty"}, "deadlineSeconds": 1},
    ]
}


def complete_checkpoints(job: Job) -> set[tuple[int, int]]:
    """Attempt and step of all checkpoints on storage; none of them may be half there."""
    survey = job.run_folder.survey()
    assert survey.rejected == ()
    for found in survey.found:
        for entry in found.manifest.files:
            assert (found.folder / entry.path).stat().st_size == entry.size
    return {(f.ref.attempt, f.ref.step) for f in survey.found}


def test_a_deleted_pod_saves_within_its_grace_and_its_worker_moves_without_losing_a_step(
    make_job: JobMaker, undisturbed: Callable[[int], str]
) -> None:
    job = make_job(Script.tiny(steps=160)).apply()
    job.until_step(20)
    before = job.pods()
    job.world.kubectl("delete", "pod", "-n", job.namespace, before[1]["metadata"]["name"], "--wait=false")
    status = job.until_trains(2)
    assert status.preemption["outcome"] in {SaveOutcome.COMMITTED, SaveOutcome.FRESH}, job.describe()
    saved = status.checkpoint("pinned")
    assert saved == status.checkpoint("restored")
    assert saved[0] == 1
    assert saved[1] >= 20
    assert status.preemption["secondsToSpare"] < GRACE_SECONDS
    assert status.restarts == {Cause.PREEMPTION: 1}
    assert "failureTimes" not in status.raw or status.raw["failureTimes"] == []
    assert complete_checkpoints(job) == {saved}
    after = job.pods()
    assert after[0]["metadata"]["uid"] == before[0]["metadata"]["uid"], "the other worker restarted in place"
    assert after[1]["metadata"]["uid"] != before[1]["metadata"]["uid"]
    assert job.digest() == undisturbed(160)


def test_ranks_agree_though_one_agent_is_cut_off_and_a_withdrawn_notice_moves_nobody(
    world: World, make_job: JobMaker
) -> None:
    """There is no other place for the workers, so the move stays in preparation until the notice is withdrawn."""
    node = NODES[0]
    world.label(node, "example.com/only=here")
    job = make_job(
        Script.tiny(steps=100_000), spec={"preemption": MATCHERS}, pod={"nodeSelector": {"example.com/only": "here"}}
    ).apply()
    try:
        job.until_step(10)
        pods, cut_off = job.pod_uids(), processes.agents(job.uid)[1]
        cut_off.send_signal(signal.SIGSTOP)
        world.annotate(node, "example.com/roomy=yes")
        status = job.until(lambda s: s.preemption.get("outcome") == SaveOutcome.COMMITTED, "the save is committed")
        [saved] = complete_checkpoints(job)
        assert saved == (1, status.preemption["savedStep"])
        [found] = job.run_folder.survey().found
        assert found.manifest.process_count == 2
        assert status.preemption["notice"]["source"] == "roomy"
        cut_off.send_signal(signal.SIGCONT)
        job.until(lambda s: s.raw.get("transition"), "a move is prepared")
        until(lambda: len(job.all_pods()) == 4, 20.0, "replacements wait for a place", seen=job.describe)
        world.annotate(node, "example.com/roomy-")
        job.until(lambda s: not s.raw.get("transition"), "the move is called off")
        until(lambda: len(job.all_pods()) == 2, 20.0, "the replacements are gone", seen=job.describe)
        step = job.status.step
        status = job.until(lambda s: s.step >= step + 10, "training goes on")
        assert status.condition(Condition.PREEMPTED)["status"] == "False"
        assert Reason.PREEMPTION_CANCELLED in {reason for reason, _ in job.events()}
        assert (status.active, status.restarts, job.pod_uids()) == (1, {}, pods)
    finally:
        world.annotate(node, "example.com/roomy-")
        world.label(node, "example.com/only-")


def test_a_notice_too_short_to_save_says_so_and_moves_all_the_same(world: World, make_job: JobMaker) -> None:
    """A step takes longer than the notice leaves, and no save can be agreed on in the middle of a step."""
    job = make_job(Script.tiny(steps=100_000, step_seconds=1.5), spec={"preemption": MATCHERS}, every_steps=3).apply()
    status = job.until(lambda s: s.step % 3 == 1 and 0 < s.checkpoint("newest")[1] < s.step, "a step beyond one saved")
    before = job.pods()
    node = before[1]["spec"]["nodeName"]
    world.annotate(node, "example.com/hasty=yes")
    try:
        status = job.until(lambda s: s.preemption.get("outcome") not in {None, SaveOutcome.PENDING}, "an outcome")
        assert status.preemption["outcome"] == SaveOutcome.TOO_LATE, job.describe()
        assert "secondsToSpare" not in status.preemption
        status = job.until_trains(2)
        assert status.restarts == {Cause.PREEMPTION: 1}
        pinned = status.checkpoint("pinned")
        assert pinned[1] % 3 == 0
        assert status.checkpoint("restored") == pinned
        assert all(step % 3 == 0 for _, step in complete_checkpoints(job)), "no half or untimely checkpoint"
        assert job.pods()[1]["spec"]["nodeName"] != node
        assert Reason.PREEMPTION_TOO_LATE in {reason for reason, _ in job.events()}
    finally:
        world.annotate(node, "example.com/hasty-")
