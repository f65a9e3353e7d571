"""Passes on what the watch has delivered: they make no read, and act on nothing but live reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast_contract import keys
from holdfast_contract.reasons import Condition
from holdfast_contract.sync import Action, Directive, Progress
from holdfast_operator.decide import conditions
from holdfast_operator.decide.facts import DEFAULT_PROGRESS_SECONDS
from holdfast_operator.gateway import kube as kube_module
from holdfast_operator.gateway.kube_errors import Unavailable
from holdfast_operator.interfaces import SystemClock
from holdfast_operator.reconcile.reconciler import Reconciler
from holdfast_operator.sync_endpoint.board import PodIdentity
from holdfast_operator.watch.cache import WatchCache
from tests.support.operator.reconcile_rig import CONTROL, Rig


class Watched:
    """A rig's job that trains, a cache that has seen it, and every request of the operator from then on."""

    def __init__(self, play: Rig) -> None:
        self.play, self.cache = play, WatchCache()
        self.calls: list[str] = []
        send = play.kube._transport.request

        async def request(method: str, path: str, *, what: str, **options: Any) -> dict[str, Any]:
            self.calls.append(what)
            return await send(method, path, what=what, **options)

        play.kube._transport.request = request  # type: ignore[method-assign]
        play.reconciler = Reconciler(
            kube=play.kube,
            board=play.board,
            control=CONTROL,
            clock=SystemClock(),
            events=play.outlets,
            metrics=play.outlets,
            cache=self.cache,
        )

    def deliver(self) -> None:
        """What the watch would deliver now."""
        kube, run = self.play.kube, self.play.runner.run
        for job in run(kube.list_jobs(self.play.namespace)).items:
            self.cache.job("MODIFIED", job)
        for pod in run(kube.list_pods(self.play.namespace, keys.LABEL_JOB_NAME)).items:
            self.cache.pod("MODIFIED", pod)
        for node in run(kube.list_nodes()):
            self.cache.node("MODIFIED", node)
        self.calls.clear()

    def missed(self) -> set[tuple[str, str]]:
        """What the list of every resync finds."""
        found = self.play.runner.run(self.play.kube.pod_versions(self.play.namespace, keys.LABEL_JOB_NAME))
        self.calls.clear()
        return self.cache.compare_pods(found)


@pytest.fixture
def watched(play: Rig) -> Watched:
    play.apply()
    play.settle(lambda: conditions.holds(play.job().status, Condition.RUNNING))
    made = Watched(play)
    made.deliver()
    for _ in range(3):  # until the status says all that the agents have reported
        play.reconcile()
    made.deliver()
    return made


def step_to_500(play: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agents report step 500, and the next progress is due."""
    clock = play.reconciler._clock
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + timedelta(seconds=DEFAULT_PROGRESS_SECONDS + 1))
    for uid, report in play.reports.items():
        play.reports[uid] = replace(report, progress=Progress(500, 1000, 0.01))
    play.play()


def test_a_pass_with_nothing_to_do_makes_no_request(watched: Watched) -> None:
    for _ in range(5):
        watched.play.reconcile()
    assert watched.calls == []


def test_progress_is_one_write_and_no_read(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    play = watched.play
    step_to_500(play, monkeypatch)
    watched.calls.clear()
    play.reconcile()
    play.reconcile()
    assert watched.calls == [f"update {keys.PLURAL}/status {play.namespace}/job"]
    progress = play.job().status.progress
    assert progress is not None
    assert progress.step == 500


def test_a_write_from_a_stale_job_is_refused_and_the_next_pass_reads_live(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = watched.play
    play.patch({"metadata": {"annotations": {"somebody": "else"}}})
    step_to_500(play, monkeypatch)
    watched.calls.clear()
    play.reconcile()
    assert [c.split()[0] for c in watched.calls] == ["update"]
    play.reconcile()
    assert f"get {keys.PLURAL} {play.namespace}/job" in watched.calls
    assert play.job().status.progress is not None


def test_a_pod_that_seems_to_be_missing_is_looked_for_before_anything_happens(watched: Watched) -> None:
    play = watched.play
    before = play.job().status
    [first, *_] = play.pods().values()
    raw = {"metadata": first.metadata.to_dict() | {"labels": first.metadata.labels, "namespace": play.namespace}}
    raw["metadata"]["resourceVersion"] = str(int(first.metadata.resource_version) + 1)
    watched.cache.pod("DELETED", raw)  # as if the watch had mistaken it
    play.reconcile()
    assert any(call.startswith("list pods") for call in watched.calls)
    assert play.job().status.active_attempt == before.active_attempt
    assert sorted(play.pods()) == ["job-0-0", "job-1-0"]
    watched.calls.clear()
    play.reconcile()
    assert watched.calls == [], "the live list has put the cache right"


def test_a_deletion_that_the_watch_has_missed_is_found_by_the_next_complete_list(watched: Watched) -> None:
    play = watched.play
    play.core.delete_namespaced_pod("job-1-0", play.namespace, grace_period_seconds=0)
    play.reconcile()
    assert watched.calls == [], "the ghost stands in the cache"
    assert watched.missed() == {(play.namespace, "job")}
    play.settle(lambda: play.job().status.restarts_total == 1)


def test_a_complete_list_is_read_in_pages(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_module, "PAGE", 1)
    play = watched.play
    found = play.runner.run(play.kube.pod_versions(play.namespace, keys.LABEL_JOB_NAME))
    assert len(watched.calls) == 2
    assert found.by_uid == {p.metadata.uid: p.metadata.resource_version for p in play.pods().values()}
    assert set(found.jobs.values()) == {(play.namespace, "job")}
    assert watched.cache.compare_pods(found) == set()


def test_agents_learn_of_a_new_attempt_in_the_pass_that_stores_it(watched: Watched) -> None:
    play = watched.play
    play.crash("job-1-0", 1)
    while play.job().status.active_attempt == 1:
        watched.calls.clear()
        play.reconcile()
    [pod] = [p for p in play.pods().values() if p.metadata.name == "job-0-0"]
    told = play.board.current(PodIdentity(play.namespace, "job-0-0", pod.metadata.uid), "job")
    assert isinstance(told, Directive)
    assert (told.action, told.attempt) == (Action.RUN, 2)
    verbs = [call.split()[0] for call in watched.calls]
    assert verbs.count("update") == 1
    assert verbs.count("list") == 1


def test_after_a_write_without_an_answer_the_next_pass_reads_live(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = watched.play
    step_to_500(play, monkeypatch)
    write = play.kube.update_job_status

    async def cut(job: dict[str, Any]) -> dict[str, Any]:
        await write(job)
        raise Unavailable("update", reason="ProtocolError")

    with monkeypatch.context() as broken:
        broken.setattr(play.kube, "update_job_status", cut)
        with pytest.raises(Unavailable):
            play.reconcile()
    watched.calls.clear()
    play.reconcile()
    assert watched.calls[0].startswith("get ")
    watched.calls.clear()
    play.reconcile()
    assert watched.calls == []
