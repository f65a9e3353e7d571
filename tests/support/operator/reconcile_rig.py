"""The reconciler against a real API server and its scheduler, with nodes and agents that exist on paper only.

Nothing runs: the rig writes what a kubelet would write about pods, and reports what agents would report. Everything
that the operator does is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config

from holdfast_contract import keys
from holdfast_contract.api import TrainingJob
from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import (
    PROTOCOL,
    Action,
    Directive,
    Inspection,
    Progress,
    Report,
    SaveReport,
    TrainerExit,
    TrainerPhase,
)
from holdfast_operator.decide.actions import Count, Event
from holdfast_operator.decide.children import ControlSettings
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.gateway.kube_errors import KubeError
from holdfast_operator.interfaces import Manifest, SystemClock
from holdfast_operator.reconcile.reconciler import Reconciler
from holdfast_operator.sync_endpoint.board import Board, PodIdentity
from holdfast_operator.telemetry.event_recorder import EventRecorder
from tests.support.cluster.manifests import training_job

CONTROL: Final = ControlSettings("https://holdfast.holdfast-system.svc:8443", "-----BEGIN CERTIFICATE-----\nMII\n")
NODE_TAINT: Final = "holdfast.dev/paper-node"
WITHIN_SECONDS: Final = 30.0
BEAT_SECONDS: Final = 2.0


class Killed(BaseException):
    """The operator's process ends here; no handler of it may run."""


class MortalKube(Kube):
    """A gateway whose process dies just before or just after its n-th write."""

    def __init__(self, configuration: Any, *, write: int = -1, after: bool = False) -> None:
        super().__init__(configuration)
        self.writes: list[str] = []
        self._write, self._after = write, after
        send = self._transport.request

        async def request(method: str, path: str, *, what: str, **options: Any) -> dict[str, Any]:
            if method == "GET":
                return await send(method, path, what=what, **options)
            number = len(self.writes)
            self.writes.append(what)
            if number == self._write and not self._after:
                raise Killed(what)
            answer = await send(method, path, what=what, **options)
            if number == self._write:
                raise Killed(what)
            return answer

        self._transport.request = request  # type: ignore[method-assign]


class Outlets:
    """What the operator has told the world."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.counts: list[Count] = []
        self.recorder: EventRecorder | None = None

    def emit(self, job: Manifest, event: Event) -> None:
        self.events.append(event)
        if self.recorder is not None:
            self.recorder.emit(job, event)

    def count(self, count: Count) -> None:
        self.counts.append(count)


class Rig:
    """One job in one namespace, its paper nodes, and operators that come and go."""

    def __init__(self, kubeconfig: Path, namespace: str, *, nodes: int = 3) -> None:
        self.configuration = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=self.configuration)
        connection = client.ApiClient(self.configuration)
        self.core, self.custom = client.CoreV1Api(connection), client.CustomObjectsApi(connection)
        self.namespace, self.name = namespace, "job"
        self.runner = asyncio.Runner()
        self.outlets = Outlets()
        self.nodes = [f"paper-{i}-{secrets.token_hex(3)}" for i in range(nodes)]
        self.inspection = Inspection(0)
        self.answers = True
        self.beat_at = 0.0
        for node in self.nodes:
            self._make_node(node)
        self.start_operator()

    # ---- operators

    def start_operator(self, *, write: int = -1, after: bool = False) -> None:
        """A new process: it knows nothing but what the API server and the agents say."""
        self.kube = MortalKube(self.configuration, write=write, after=after)
        self.board = Board()
        self.reconciler = Reconciler(
            kube=self.kube,
            board=self.board,
            control=CONTROL,
            clock=SystemClock(),
            events=self.outlets,
            metrics=self.outlets,
        )
        self.reports: dict[str, Report] = getattr(self, "reports", {})

    def reconcile(self) -> float | None:
        """One pass; a process that dies in it is followed by a new one."""
        try:
            return self.runner.run(self.reconciler.reconcile(self.namespace, self.name))
        except Killed:
            self.start_operator()
            return 0.0
        finally:
            if self.outlets.recorder is not None:
                self.runner.run(self.outlets.recorder.flush())

    def settle(self, done: Callable[[], bool]) -> None:
        """Let the operator, the paper kubelet and the paper agents take turns until something holds."""
        deadline = time.monotonic() + WITHIN_SECONDS
        while not done():
            assert time.monotonic() < deadline, self.picture()
            self.reconcile()
            self.play()

    def record(self) -> None:
        """From now on a recorder that knows nothing of earlier ones writes Events. Its writes kill nobody."""
        self.outlets.recorder = EventRecorder(Kube(self.configuration), "rig")

    # ---- what a user, a kubelet and agents do

    def apply(self, **spec: Any) -> Manifest:
        """Create the job; its pods fit only on this rig's nodes."""
        job = training_job(self.name, namespace=self.namespace, spec=spec)
        pod = job["spec"]["template"]["spec"]
        pod["nodeSelector"] = {NODE_TAINT: self.namespace}
        pod["tolerations"] = [{"key": NODE_TAINT, "operator": "Exists"}]
        return self._custom("create_namespaced_custom_object", job)

    def job(self) -> TrainingJob:
        raw = self._custom("get_namespaced_custom_object", self.name)
        return TrainingJob.model_validate({k: raw[k] for k in raw if k != "metadata"} | {"metadata": raw["metadata"]})

    def exists(self) -> bool:
        try:
            self._custom("get_namespaced_custom_object", self.name)
        except client.ApiException as error:
            if error.status == 404:
                return False
            raise
        return True

    def patch(self, body: Manifest) -> None:
        self._custom("patch_namespaced_custom_object", self.name, body)

    def delete(self) -> None:
        self._custom("delete_namespaced_custom_object", self.name)

    def pods(self) -> dict[str, Any]:
        found = self.core.list_namespaced_pod(self.namespace, label_selector=f"{keys.LABEL_JOB_NAME}={self.name}")
        return {p.metadata.name: p for p in found.items}

    def play(self) -> None:
        """Pods that have a node run, pods that are to go are gone, agents obey and report."""
        self._beat()
        for pod in self.pods().values():
            if pod.metadata.deletion_timestamp is not None:
                with contextlib.suppress(client.ApiException):
                    self.core.delete_namespaced_pod(pod.metadata.name, self.namespace, grace_period_seconds=0)
                continue
            if pod.spec.node_name and pod.status.phase == "Pending":
                self._start(pod)
            if pod.status.phase == "Running":
                self._obey(pod)

    def _start(self, pod: Any) -> None:
        address = f"10.0.{len(self.reports)}.{1 + secrets.randbelow(250)}"
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        self.core.patch_namespaced_pod_status(pod.metadata.name, self.namespace, {"status": status})

    def _obey(self, pod: Any) -> None:
        uid = pod.metadata.uid
        who = PodIdentity(self.namespace, pod.metadata.name, uid)
        report = self.reports.setdefault(uid, Report(PROTOCOL, 0, "", TrainerPhase.NONE))
        answer = self.board.current(who, self.name)
        if isinstance(answer, Directive):
            report = self.reports[uid] = self._follow(report, answer)
        self.board.put_report(who, self.name, report)

    def _follow(self, report: Report, told: Directive) -> Report:
        report = replace(report, obeys=told.tag)
        if told.action is Action.INSPECT:
            return replace(report, attempt=told.attempt, inspection=self.inspection)
        if told.action is not Action.RUN:
            return replace(report, attempt=told.attempt, phase=TrainerPhase.NONE, exit=None)
        if report.attempt != told.attempt or report.phase is TrainerPhase.NONE:
            step = told.pin.step if told.pin else 0
            progress = Progress(step + 1, 1000, 0.01)
            return replace(
                report,
                attempt=told.attempt,
                phase=TrainerPhase.RUNNING,
                exit=None,
                progress=progress,
                restored=told.pin,
            )
        save = told.save
        if report.phase is not TrainerPhase.RUNNING or save is None or not self.answers:
            return report
        if any(s.id == save.id for s in report.saves):
            return report
        step = report.progress.last_completed_step + 1 if report.progress else 1
        ref = CheckpointRef(told.attempt, step, "d" * 64)
        report = replace(report, saves=(SaveReport(save.id, SaveOutcome.COMMITTED, ref),), newest=ref)
        if not save.stop:
            return report
        ended = TrainerExit(told.attempt, int(ExitCode.SAVED))
        return replace(report, phase=TrainerPhase.EXITED, exit=ended, progress=Progress(step, 1000, 0.01))

    def crash(self, pod_name: str, code: int) -> None:
        """The trainer in this pod ends by itself, and its agent says so."""
        uid = self.pods()[pod_name].metadata.uid
        report = self.reports[uid]
        self.reports[uid] = replace(report, phase=TrainerPhase.EXITED, exit=TrainerExit(report.attempt, code))
        self.play()

    def taint(self, node: str, key: str, *, present: bool = True) -> None:
        kept = [t for t in self.core.read_node(node).spec.taints or [] if t.key == NODE_TAINT]
        taints = [{"key": t.key, "value": t.value, "effect": t.effect} for t in kept]
        added = [{"key": key, "effect": "NoSchedule"}] if present else []
        self.core.patch_node(node, {"spec": {"taints": [*taints, *added]}})

    def picture(self) -> str:
        """Where things stand, for the message of a test that waited in vain."""
        status = self.job().status.model_dump(mode="json", exclude_none=True) if self.exists() else "gone"
        pods = {n: (p.status.phase, p.spec.node_name) for n, p in self.pods().items()}
        return f"status {status}\npods {pods}\nevents {[e.reason.value for e in self.outlets.events]}"

    def close(self) -> None:
        """Remove the nodes; the namespace goes with its fixture."""
        for node in self.nodes:
            with contextlib.suppress(client.ApiException):
                self.core.delete_node(node)
        with contextlib.suppress(client.ApiException, KubeError):
            self.patch({"metadata": {"finalizers": []}})
        self.kube.close()
        self.runner.close()

    def _make_node(self, name: str) -> None:
        labels = {NODE_TAINT: self.namespace, "kubernetes.io/hostname": name}
        taints = [{"key": NODE_TAINT, "value": "x", "effect": "NoSchedule"}]
        self.core.create_node({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}})
        room = {"cpu": "8", "memory": "8Gi", "pods": "100"}
        ready = {"type": "Ready", "status": "True", "reason": "Paper", "lastTransitionTime": _now()}
        self.core.patch_node_status(name, {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}})

    def _beat(self) -> None:
        """What kubelets say every few seconds; nodes that fall silent are given no more pods."""
        if time.monotonic() < self.beat_at:
            return
        self.beat_at = time.monotonic() + BEAT_SECONDS
        for node in self.nodes:
            ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": _now()}
            with contextlib.suppress(client.ApiException):  # a test may have removed it
                self.core.patch_node_status(node, {"status": {"conditions": [ready]}})

    def _custom(self, call: str, *arguments: Any) -> Manifest:
        method = getattr(self.custom, call)
        answer: Manifest = method(keys.API_GROUP, keys.VERSION, self.namespace, keys.PLURAL, *arguments)
        return answer


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextlib.contextmanager
def rig(kubeconfig: Path, namespace: str) -> Iterator[Rig]:
    """A rig that leaves no node behind."""
    made = Rig(kubeconfig, namespace)
    try:
        yield made
    finally:
        made.close()
