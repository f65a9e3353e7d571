"""The operator's core against a real API server: what it writes, what it survives, what it refuses."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from kubernetes import client

from holdfast_contract import keys
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import Condition, Reason, SaveOutcome
from holdfast_contract.sync import Action, Directive, Inspection
from holdfast_operator.decide import conditions
from holdfast_operator.decide.rules import preparation
from holdfast_operator.gateway.kube_errors import Invalid
from holdfast_operator.sync_endpoint.board import PodIdentity
from tests.support.operator.reconcile_rig import CONTROL, Rig


def training(play: Rig) -> bool:
    return conditions.holds(play.job().status, Condition.RUNNING)


def started(play: Rig, **spec: Any) -> None:
    play.apply(**spec)
    play.settle(lambda: training(play))


def restarted(play: Rig, total: int = 1) -> bool:
    return play.job().status.restarts_total == total and training(play)


def test_pods_are_what_the_contract_says(play: Rig) -> None:
    play.apply()
    play.reconcile()
    uid = play.job().metadata.uid
    pods = play.pods()
    assert sorted(pods) == ["job-0-0", "job-1-0"]
    pod = pods["job-1-0"]
    owner = pod.metadata.owner_references[0]
    assert (owner.kind, owner.name, owner.uid, owner.controller) == (keys.KIND, "job", uid, True)
    assert pod.metadata.labels == {
        "team": "language",
        keys.LABEL_JOB_NAME: "job",
        keys.LABEL_JOB_UID: uid,
        keys.LABEL_REPLICA_INDEX: "1",
        keys.LABEL_CREATED_IN_ATTEMPT: "0",
        keys.LABEL_MANAGED_BY: keys.MANAGED_BY,
    }
    container = pod.spec.containers[0]
    assert container.command == ["python", "-m", keys.AGENT_MODULE, "--", "python", "-m", "train"]
    env = {e.name: e.value for e in container.env}
    assert env["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"
    assert env[keys.ENV_CONTROL_URL] == CONTROL.url
    assert env[keys.ENV_CONTROL_CA] == CONTROL.ca_pem
    assert (env[keys.ENV_REPLICA_INDEX], env[keys.ENV_REPLICAS], env[keys.ENV_RUN]) == ("1", "2", uid)
    policy = json.loads(env[keys.ENV_CHECKPOINT_POLICY])
    assert policy == {"every": {"steps": 100}, "keep": {}}
    assert pod.spec.restart_policy == "Never"
    assert pod.spec.automount_service_account_token is False
    token = next(v for v in pod.spec.volumes if v.name == keys.TOKEN_VOLUME).projected.sources[0]
    assert token.service_account_token.audience == keys.TOKEN_AUDIENCE


def test_first_attempt_is_numbered_and_stored_before_it_runs(play: Rig) -> None:
    play.inspection = Inspection(6, (CheckpointRef(6, 40, "d" * 64),))
    started(play)
    status = play.job().status
    assert (status.attempt, status.active_attempt) == (7, 7)
    assert status.checkpoint.pinned is not None
    assert status.checkpoint.pinned.step == 40
    assert status.observed_generation == 1
    assert all(c.reason for c in status.conditions)
    names = [e.reason for e in play.outlets.events]
    assert names.index(Reason.ACCEPTED) < names.index(Reason.ATTEMPT_STARTED)
    raw = play.custom.get_namespaced_custom_object(keys.API_GROUP, keys.VERSION, play.namespace, keys.PLURAL, play.name)
    assert raw["metadata"]["finalizers"] == [keys.FINALIZER]


def test_crash_keeps_the_pods(play: Rig) -> None:
    started(play)
    before = {n: p.metadata.uid for n, p in play.pods().items()}
    play.crash("job-1-0", 1)
    play.settle(lambda: restarted(play))
    status = play.job().status
    assert status.restarts == {"Failure": 1}
    assert {n: p.metadata.uid for n, p in play.pods().items()} == before
    assert len(status.failure_times) == 1
    assert status.failures.count == 1, "as the API server has stored it"


def test_notice_moves_the_worker_to_another_node(play: Rig) -> None:
    started(play)
    node = play.pods()["job-1-0"].spec.node_name
    doomed = [p.metadata.labels[keys.LABEL_REPLICA_INDEX] for p in play.pods().values() if p.spec.node_name == node]
    play.taint(node, "karpenter.sh/disrupted")
    play.settle(lambda: restarted(play))
    status = play.job().status
    assert status.restarts == {"Preemption": 1}
    assert status.failures.count == 0, "it was warned and lost nothing"
    assert status.preemption is not None
    assert status.preemption.outcome is SaveOutcome.COMMITTED
    play.settle(lambda: len(play.pods()) == 2)
    assert all(p.spec.node_name != node for p in play.pods().values())
    assert {n for n in play.pods() if n.endswith("-2")} == {f"job-{i}-2" for i in doomed}
    replacement = play.pods()[f"job-{doomed[0]}-2"].spec.affinity.node_affinity
    terms = replacement.required_during_scheduling_ignored_during_execution.node_selector_terms
    assert [f.values for t in terms for f in t.match_fields] == [[node]]


def test_a_pod_takes_the_place_that_was_doomed_when_nothing_else_is_to_be_had(
    play: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice is withdrawn after the pod was gone and its replacement made: an affinity cannot be taken back."""
    monkeypatch.setattr(preparation, "PLACE_SECONDS", 2.0)
    started(play)
    node = play.pods()["job-1-0"].spec.node_name
    doomed = [name for name, pod in play.pods().items() if pod.spec.node_name == node]
    for other in play.nodes:
        if other != node:
            play.taint(other, "example.com/full")
    play.taint(node, "karpenter.sh/disrupted")
    play.settle(lambda: "job-1-2" in play.pods())
    for name in doomed:
        play.core.delete_namespaced_pod(name, play.namespace, grace_period_seconds=0)
    play.settle(lambda: (move := play.job().status.transition) is not None and not move.training)
    assert play.pods()["job-1-2"].spec.node_name is None
    play.taint(node, "karpenter.sh/disrupted", present=False)
    play.settle(lambda: restarted(play) and len(play.pods()) == 2)
    assert play.pods()["job-1-3"].spec.node_name == node
    assert play.job().status.restarts == {"Preemption": 1}


def test_conflict_is_decided_anew_and_counted_once(play: Rig) -> None:
    started(play)
    play.crash("job-0-0", 1)
    read = play.kube.get_job
    meddled: list[int] = []

    async def meddling(namespace: str, name: str) -> dict[str, Any] | None:
        found = await read(namespace, name)
        if len(meddled) < 3:
            meddled.append(1)
            play.patch({"metadata": {"annotations": {"touched": str(time.monotonic())}}})
        return found

    play.kube.get_job = meddling  # type: ignore[method-assign]
    play.settle(lambda: restarted(play))
    assert len(meddled) == 3
    assert play.job().status.restarts == {"Failure": 1}
    assert sum(e.reason is Reason.WORKER_CRASHED for e in play.outlets.events) == 1


def test_deletion_saves_releases_and_leaves_nothing(play: Rig) -> None:
    started(play)
    play.delete()
    play.reconcile()
    assert play.exists(), "the finalizer holds it while a save is owed"
    request = play.job().status.save
    assert request is not None
    assert request.stop
    play.settle(lambda: not play.exists())
    play.settle(lambda: not play.pods())
    assert play.reconcile() is None


def test_suspension_and_resumption(play: Rig) -> None:
    started(play)
    play.patch({"spec": {"suspend": True}})
    play.settle(lambda: conditions.holds(play.job().status, Condition.SUSPENDED) and not play.pods())
    assert play.job().status.checkpoint.newest is not None
    play.patch({"spec": {"suspend": False}})
    play.settle(lambda: restarted(play))
    assert play.job().status.restarts == {"UserRequest": 1}


def test_pod_of_somebody_else_is_never_adopted(play: Rig) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}]}
    play.core.create_namespaced_pod(play.namespace, {"metadata": {"name": "job-0-0"}, "spec": spec})
    play.apply()
    play.reconcile()
    play.reconcile()
    assert Reason.POD_CREATION_FAILED in [e.reason for e in play.outlets.events]
    assert sorted(play.pods()) == ["job-1-0"]
    assert play.core.read_namespaced_pod("job-0-0", play.namespace).metadata.deletion_timestamp is None


def test_member_is_told_and_stranger_is_not(play: Rig) -> None:
    started(play)
    pod = play.pods()["job-0-0"]
    member = PodIdentity(play.namespace, "job-0-0", pod.metadata.uid)
    answer = play.board.current(member, "job")
    assert isinstance(answer, Directive)
    assert (answer.action, answer.coordinator) == (Action.RUN, f"{pod.status.pod_ip}:{keys.coordinator_port(1)}")
    stranger = PodIdentity(play.namespace, "job-0-0", "another-uid")
    assert not isinstance(play.board.current(stranger, "job"), Directive)


def test_status_that_the_definition_refuses_is_an_error_and_not_a_loop(play: Rig) -> None:
    play.apply()
    raw = play.custom.get_namespaced_custom_object(keys.API_GROUP, keys.VERSION, play.namespace, keys.PLURAL, play.name)
    raw["status"] = {"attempt": -1}
    with pytest.raises(Invalid, match="attempt"):
        play.runner.run(play.kube.update_job_status(raw))


def test_operator_killed_at_every_write_of_a_restart_counts_it_once(play: Rig) -> None:
    started(play, recovery={"noProgressLimit": 100, "maxFailures": 100})
    total, number, after = 0, 0, False
    while True:
        play.start_operator(write=number, after=after)
        mortal = play.kube
        play.settle(lambda: training(play))
        play.crash("job-1-0", 1)
        total += 1
        play.settle(lambda t=total: restarted(play, t))  # type: ignore[misc]
        status = play.job().status
        assert status.restarts == {"Failure": total}
        assert (status.attempt, status.active_attempt) == (total + 1, total + 1)
        assert sorted(play.pods()) == ["job-0-0", "job-1-0"]
        if len(mortal.writes) <= number:
            break  # the story needs fewer writes than that: it was killed at each of them
        number, after = (number, True) if not after else (number + 1, False)
    assert number >= 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_operator_killed_at_every_write_of_a_move_moves_once(play: Rig, after: bool) -> None:
    started(play)
    total, number = 0, 0
    while True:
        play.start_operator(write=number, after=after)
        mortal = play.kube
        node = max(play.pods().values(), key=lambda p: p.metadata.name).spec.node_name
        play.taint(node, "karpenter.sh/disrupted")
        total += 1
        play.settle(lambda t=total: restarted(play, t) and len(play.pods()) == 2)  # type: ignore[misc]
        play.taint(node, "karpenter.sh/disrupted", present=False)
        assert play.job().status.restarts == {"Preemption": total}
        assert play.job().status.failure_times == ()
        if len(mortal.writes) <= number:
            break
        number += 1
    assert number >= 4


def test_failure_of_the_api_server_is_passed_on(play: Rig) -> None:
    with pytest.raises(client.ApiException):
        play.job()
    assert play.reconcile() is None, "no such job: nothing to do, nothing to come back for"


def test_paper_nodes_stay_in_use_however_slow_the_machine_is(play: Rig) -> None:
    """The rig itself: nodes without a heartbeat would be given no pods after the controller's period of grace."""
    beats = set()

    def beaten() -> bool:
        (ready,) = [c for c in play.core.read_node(play.nodes[0]).status.conditions if c.type == "Ready"]
        beats.add(ready.last_heartbeat_time)
        return len(beats - {None}) >= 2

    play.apply()
    play.settle(beaten)
