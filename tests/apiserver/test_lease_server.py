"""Which replica acts: election over a real Lease, by processes that die, stop and come back."""

from __future__ import annotations

import asyncio
import secrets
import signal
from pathlib import Path

import pytest
from kubernetes.client import CoreV1Api

from holdfast_contract import keys
from holdfast_contract.sync import LEADER_HEADER, PROTOCOL, Report, TrainerPhase
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.gateway.kube_errors import Conflict
from holdfast_operator.lease import ElectionTimes, LeaderElector
from localkube.access import ClusterAccess
from tests.support.cluster.crd_server import connect, install_definition
from tests.support.cluster.manifests import training_job
from tests.support.operator.process import OperatorProcess
from tests.support.polling import until, until_async

QUICK = ElectionTimes(duration_seconds=1.5, renew_deadline_seconds=1.0, retry_seconds=0.1)
REPORT = Report(PROTOCOL, 0, "", TrainerPhase.NONE)


class HeldClock:
    """Stands still until a test moves it: what happens meanwhile has waited for nothing."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class CountingElector(LeaderElector):
    """Says how often it has looked at the Lease."""

    attempts = 0

    async def _attempt(self) -> None:
        await super()._attempt()
        self.attempts += 1


class Replica:
    """An elector that remembers when it led."""

    def __init__(self, kube: Kube, namespace: str, name: str, clock: HeldClock) -> None:
        self.changes: list[bool] = []
        self.elector = CountingElector(
            kube,
            namespace=namespace,
            name="lease",
            me=f"{name}@10.0.0.1:8443",
            on_change=self.changes.append,
            times=QUICK,
            clock=clock,
        )
        self.task = asyncio.create_task(self.elector.run())

    async def leads(self) -> None:
        await until_async(lambda: self.elector.leading, 30, "leads")

    async def looks(self) -> None:
        """Return once it has looked again, from the beginning to the end."""
        before = self.elector.attempts
        await until_async(lambda: self.elector.attempts >= before + 2, 30, "looks at the Lease")

    async def dies(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def test_one_leads_and_the_other_takes_over_when_it_dies(kube: Kube, namespace: str) -> None:
    async def scenario() -> None:
        clock = HeldClock()
        first = Replica(kube, namespace, "first", clock)
        await first.leads()
        second = Replica(kube, namespace, "second", clock)
        for _ in range(6):
            clock.now += QUICK.duration_seconds / 3
            await first.looks()
            await second.looks()
        assert (first.changes, second.changes) == ([True], [])
        assert second.elector.leader_address == "10.0.0.1:8443"
        await first.dies()
        await second.looks()
        clock.now += QUICK.duration_seconds - 0.01
        await second.looks()
        assert second.changes == []
        clock.now += 1.0  # the Lease says its duration in whole seconds
        await second.leads()
        lease = await kube.get_lease(namespace, "lease")
        assert lease is not None
        assert lease["spec"]["leaseTransitions"] == 1

    asyncio.run(scenario())


def test_a_released_lease_is_taken_at_once(kube: Kube, namespace: str) -> None:
    async def scenario() -> None:
        clock = HeldClock()
        first = Replica(kube, namespace, "first", clock)
        await first.leads()
        second = Replica(kube, namespace, "second", clock)
        await second.looks()
        await first.dies()
        await first.elector.release()
        await second.leads()
        assert first.changes == [True, False]

    asyncio.run(scenario())


def test_whoever_held_the_lease_before_it_died_takes_it_again_at_once(kube: Kube, namespace: str) -> None:
    async def scenario() -> None:
        clock = HeldClock()
        first = Replica(kube, namespace, "same", clock)
        await first.leads()
        await first.dies()
        await Replica(kube, namespace, "same", clock).leads()

    asyncio.run(scenario())


def test_a_leader_that_cannot_renew_gives_up_before_another_may_take_over(kube: Kube, namespace: str) -> None:
    async def scenario() -> None:
        clock = HeldClock()
        first = Replica(kube, namespace, "first", clock)
        await first.leads()
        second = Replica(kube, namespace, "second", clock)
        await first.looks()

        async def hang(_lease: object) -> None:
            await asyncio.Event().wait()

        first.elector._kube = type("Deaf", (), {"update_lease": staticmethod(hang)})()
        await second.looks()
        clock.now += QUICK.renew_deadline_seconds
        assert not first.elector.leading
        await until_async(lambda: len(first.changes) >= 2, 30, "the end of its lead")
        await second.looks()
        assert (first.changes, second.changes) == ([True, False], [])

    asyncio.run(scenario())


def test_an_old_leader_s_late_write_loses(kube: Kube, namespace: str, cluster: ClusterAccess) -> None:
    """The fence that matters: what was read before the change of leader cannot be written after it."""
    install_definition(cluster.kubeconfig)
    with connect(cluster.kubeconfig, namespace) as jobs:
        jobs.create(training_job("late", namespace=namespace))

    async def scenario() -> None:
        read_by_old = await kube.get_job(namespace, "late")
        read_by_new = await kube.get_job(namespace, "late")
        assert read_by_old is not None
        assert read_by_new is not None
        await kube.update_job_status({**read_by_new, "status": {"attempt": 2}})
        with pytest.raises(Conflict):
            await kube.update_job_status({**read_by_old, "status": {"attempt": 1}})
        now = await kube.get_job(namespace, "late")
        assert now is not None
        assert now["status"]["attempt"] == 2

    asyncio.run(scenario())


@pytest.mark.timeout(180)
def test_processes_change_places(cluster: ClusterAccess, core_api: CoreV1Api, namespace: str, tmp_path: Path) -> None:
    """Standby answers 421; the leader is stopped by SIGSTOP; the standby leads; the old one wakes up and stands by."""
    install_definition(cluster.kubeconfig)
    first = OperatorProcess(cluster.kubeconfig, tmp_path / "both", namespace)
    first.wait_leading()
    second = OperatorProcess(cluster.kubeconfig, tmp_path / "both", namespace)
    try:
        until(lambda: second.get("health", "/readyz")[0] == 200, 20, "the standby is ready")
        until(lambda: second.sync("a.b.c", REPORT)[0] == 421, 10, "421")
        _, body, headers = second.sync("a.b.c", REPORT)
        assert headers[LEADER_HEADER] == body["leader"] == f"127.0.0.1:{first.ports()['control']}"

        first.process.send_signal(signal.SIGSTOP)
        second.wait_leading(30)
        with connect(cluster.kubeconfig, namespace) as jobs:
            jobs.create(training_job("train", namespace=namespace))
        until(lambda: core_api.list_namespaced_pod(namespace, label_selector=keys.LABEL_JOB_NAME).items, 20, "pods")
        first.process.send_signal(signal.SIGCONT)
        until(lambda: first.logged("leading no longer"), 10, "the end of its lead")
        until(lambda: first.sync("a.b.c", REPORT)[0] == 421, 10, "the old leader points to the new one")
    finally:
        first.process.send_signal(signal.SIGCONT)
        assert [second.stop(), first.stop()] == [0, 0]


def test_killed_and_started_again_it_goes_on_at_once(
    cluster: ClusterAccess, core_api: CoreV1Api, namespace: str, tmp_path: Path
) -> None:
    """The same pod's new container holds the same identity, so it need not wait for its own lease to grow stale."""
    install_definition(cluster.kubeconfig)
    name = f"op-{secrets.token_hex(3)}"
    first = OperatorProcess(
        cluster.kubeconfig, tmp_path, namespace, HOLDFAST_OPERATOR_POD_NAME=name, HOLDFAST_OPERATOR_CONTROL_PORT="0"
    )
    port = str(first.wait_leading().ports()["control"])
    with connect(cluster.kubeconfig, namespace) as jobs:
        jobs.create(training_job("train", namespace=namespace))
    until(lambda: len(_pods(core_api, namespace)) == 2, 20, "both pods")
    before = _pods(core_api, namespace)
    first.stop(signal.SIGKILL)
    again = OperatorProcess(
        cluster.kubeconfig, tmp_path, namespace, HOLDFAST_OPERATOR_POD_NAME=name, HOLDFAST_OPERATOR_CONTROL_PORT=port
    )
    try:
        again.wait_leading()
        until(lambda: 'result="ok"' in again.get("metrics", "/metrics")[1], 20, "a pass")
        assert _pods(core_api, namespace) == before
    finally:
        assert again.stop() == 0


def _pods(core_api: CoreV1Api, namespace: str) -> set[str]:
    return {pod.metadata.uid for pod in core_api.list_namespaced_pod(namespace).items}
