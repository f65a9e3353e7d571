"""A small world in memory for the pure decisions: pods, agents that obey directives, nodes, and a clock that is told.

It does what the API server, the kubelet and the agents would do with a plan, one effect at a time, so that a test can
let the operator die after any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from holdfast_contract.api import TrainingJobSpec, TrainingJobStatus
from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import Bucket, Cause, Condition, SaveOutcome
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
from holdfast_operator.decide import conditions
from holdfast_operator.decide.actions import Count, CreatePod, DeleteJob, DeletePod, Event, Finalizer, JobPlan
from holdfast_operator.decide.children import pod_name
from holdfast_operator.decide.facts import (
    ContainerEnd,
    JobFact,
    LastReport,
    NodeCondition,
    NodeFact,
    Observation,
    OtherOwner,
    PodFact,
    Taint,
)
from holdfast_operator.decide.members import JobView
from holdfast_operator.decide.precedence import decide
from tests.support.operator.decide_parts import START, Agent, ready_node, spec, takes_pods


@dataclass
class World:
    """Everything outside the operator's head."""

    spec: TrainingJobSpec = field(default_factory=spec)
    now: datetime = START
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    pods: dict[str, PodFact] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    nodes: dict[str, NodeFact] = field(default_factory=dict)
    leads_since: datetime = START - timedelta(hours=1)
    inspection: Inspection = field(default_factory=lambda: Inspection(highest_attempt=0))
    other_owner: OtherOwner | None = None
    deleted_at: datetime | None = None
    finalizer: bool = False
    gone: bool = False
    steps: int = 0
    events: list[Event] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    directives: dict[str, Directive] = field(default_factory=dict)
    plans: list[JobPlan] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    shunned: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by pod name
    rejects: dict[str, str] = field(default_factory=dict)  # why a node's kubelet does not admit pods
    failing_saves: int = 0  # so many save requests fail
    failed_saves: set[str] = field(default_factory=set)
    saving: bool = True  # whether trainers answer save requests

    def __post_init__(self) -> None:
        for name in ("a", "b", "c"):
            self.nodes.setdefault(name, ready_node(name))

    # ---- the operator

    def observe(self) -> Observation:
        hosts = {p.node for p in self.pods.values() if p.node}
        job = JobFact(
            "ns", "job", "job-uid", 1, START, self.spec, self.status, self.deleted_at, has_finalizer=self.finalizer
        )
        heard = {
            uid: LastReport(a.report, (self.now - a.spoke_at).total_seconds())
            for uid, a in self.agents.items()
            if a.spoke_at >= self.leads_since
        }
        nodes = {n: self.nodes.get(n, NodeFact(n, exists=False)) for n in hosts}
        term_seconds = (self.now - self.leads_since).total_seconds()
        return Observation(job, tuple(self.pods.values()), nodes, heard, self.other_owner, term_seconds)

    def restart_operator(self) -> None:
        """A new operator leads: it has heard no agent yet, and agents speak to it from the next tick on."""
        self.leads_since = self.now + timedelta(milliseconds=1)
        self.now = self.leads_since
        self.directives = {}

    def reconcile(self, effects: int | None = None) -> JobPlan:
        """One pass of the operator; it dies after so many effects."""
        plan = decide(self.observe(), self.now)
        self.plans.append(plan)
        for number, effect in enumerate(self._effects(plan)):
            if effects is not None and number >= effects:
                break
            effect()
        return plan

    def _effects(self, plan: JobPlan) -> Iterator[Callable[[], None]]:
        if plan.directives is not None:
            yield lambda: self._publish(plan)
        for action in plan.actions:
            match action:
                case CreatePod():
                    yield lambda a=action: self._create(a)  # type: ignore[misc]
                case DeletePod():
                    yield lambda a=action: self._delete(a)  # type: ignore[misc]
                case Finalizer():
                    yield lambda a=action: self._finalize(a)  # type: ignore[misc]
                case DeleteJob():
                    yield lambda: setattr(self, "deleted_at", self.now)
        if plan.status is not self.status:
            yield lambda: self._write(plan)

    def _publish(self, plan: JobPlan) -> None:
        self.directives = dict(plan.directives or {})

    def _create(self, action: CreatePod) -> None:
        name = pod_name("job", action.index, action.attempt)
        if name in self.pods:
            return
        self.created.append(name)
        uid = f"{name}/{len(self.created)}"
        avoids = frozenset(action.avoid_nodes)
        self.pods[name] = PodFact(name, uid, action.index, action.attempt, "Pending", avoids=avoids)
        self.shunned[name] = action.shun_nodes
        self._schedule(name)

    def _schedule(self, name: str) -> None:
        """As the scheduler does it: no node that the pod avoids, none with a taint. Without a place it waits."""
        pod = self.pods[name]
        free = [n for n, node in sorted(self.nodes.items()) if n not in pod.avoids and takes_pods(node)]
        free = [n for n in free if n not in self.shunned.get(name, ())] or free
        if free and not pod.node:
            self.pods[name] = replace(pod, node=free[pod.index % len(free)])

    def _delete(self, action: DeletePod) -> None:
        pod = self.pods.get(action.name)
        if pod is not None and pod.uid == action.uid:
            self.agents.pop(pod.uid, None)
            del self.pods[action.name]

    def _finalize(self, action: Finalizer) -> None:
        self.finalizer = action is Finalizer.ADD
        self.gone = action is Finalizer.REMOVE and self.deleted_at is not None

    def _write(self, plan: JobPlan) -> None:
        assert plan.status.attempt >= self.status.attempt, "the attempt never shrinks"
        assert plan.status.active_attempt >= self.status.active_attempt
        TrainingJobStatus.model_validate(plan.status.model_dump(mode="json", by_alias=True, exclude_none=True))
        self.status = plan.status
        self.events += plan.events
        self.counts += plan.counts

    # ---- kubelet and agents

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes: pods start, agents obey, trainers step."""
        self.now += timedelta(seconds=seconds)
        for name in list(self.pods):
            self._schedule(name)
            pod = self.pods[name]
            if pod.phase == "Pending" and pod.node and not pod.terminating:
                if pod.node in self.rejects:
                    self.pods[name] = replace(pod, phase="Failed", reason=self.rejects[pod.node])
                    continue
                number = int(pod.uid.rsplit("/", 1)[1])
                self.pods[name] = replace(pod, phase="Running", ip=f"10.0.0.{number}")
                report = Report(PROTOCOL, 0, "", TrainerPhase.NONE)
                self.agents[pod.uid] = Agent(report, self.now)
        for pod in self.pods.values():
            agent = self.agents.get(pod.uid)
            if agent is not None and not agent.silent and not pod.finished:
                self._obey(pod, agent, seconds)

    def _obey(self, pod: PodFact, agent: Agent, seconds: float) -> None:
        directive = self.directives.get(pod.uid)
        spent = dict(agent.report.buckets)
        running = agent.report.phase is TrainerPhase.RUNNING
        bucket = Bucket.PRODUCTIVE if running else Bucket.IDLE
        spent[bucket.value] = spent.get(bucket.value, 0.0) + seconds
        agent.say(self.now, buckets=spent)
        if directive is None:
            return
        report = agent.report
        agent.say(self.now, obeys=directive.tag)
        if directive.action is Action.INSPECT:
            agent.say(self.now, attempt=directive.attempt, inspection=self.inspection)
        elif directive.action is Action.WAIT:
            agent.say(self.now, attempt=directive.attempt, phase=TrainerPhase.NONE, exit=None)
        elif directive.action is Action.EXIT:
            code = 0 if report.phase is TrainerPhase.EXITED and report.exit and report.exit.code == 0 else 83
            self.end_pod(pod.name, code)
        elif self._starts(report, directive):
            origin = directive.pin.step if directive.pin else 0
            agent.say(
                self.now,
                attempt=directive.attempt,
                phase=TrainerPhase.RUNNING,
                exit=None,
                progress=Progress(origin, step_seconds=seconds),
                restored=directive.pin,
            )
        elif report.phase is TrainerPhase.RUNNING:
            self._train(agent, directive)

    @staticmethod
    def _starts(report: Report, directive: Directive) -> bool:
        """Whether no trainer of the directive's attempt was started yet."""
        ended_before = report.exit is not None and report.exit.attempt != directive.attempt
        return report.attempt != directive.attempt or report.phase is TrainerPhase.NONE or ended_before

    def _train(self, agent: Agent, directive: Directive) -> None:
        progress = agent.report.progress
        step = (progress.last_completed_step if progress else 0) + 1
        agent.say(self.now, progress=Progress(step, step_seconds=1.0))
        save = directive.save
        if save is None or not self.saving or any(s.id == save.id for s in agent.report.saves):
            return
        if self.failing_saves and save.id not in self.failed_saves:
            self.failing_saves -= 1
            self.failed_saves.add(save.id)
            failed = SaveReport(save.id, SaveOutcome.FAILED, None, "no agreement within 2 s")
            agent.say(self.now, saves=(failed,))
        if save.id in self.failed_saves:
            return
        ref = CheckpointRef(directive.attempt, step, f"d{directive.attempt}-{step}")
        agent.say(self.now, saves=(SaveReport(save.id, SaveOutcome.COMMITTED, ref),), newest=ref)
        if save.stop:
            self._exit(agent, int(ExitCode.SAVED))

    # ---- what tests do to it

    def run(self, passes: int = 12, seconds: float = 1.0) -> None:
        """Let the operator and the world take turns."""
        for _ in range(passes):
            self.reconcile()
            self.tick(seconds)

    def settle(self, done: Callable[[], bool], passes: int = 60) -> None:
        """Take turns until something holds; turns of the operator alone take no time."""
        for _ in range(passes):
            if done():
                return
            if self.reconcile().requeue_after_seconds > 0:
                self.tick()
        raise AssertionError(f"never came true; status: {self.status.model_dump(exclude_none=True)}")

    def training(self) -> bool:
        return conditions.holds(self.status, Condition.RUNNING)

    def agent(self, index: int) -> Agent:
        """The agent of the newest pod of a worker."""
        pods = [p for p in self.pods.values() if p.index == index and p.uid in self.agents]
        return self.agents[max(pods, key=lambda p: p.created_in_attempt).uid]

    def crash(self, index: int, code: int, cause: Cause | None = None) -> None:
        """The trainer of this worker ends by itself."""
        self._exit(self.agent(index), code, cause)

    def _exit(self, agent: Agent, code: int, cause: Cause | None = None) -> None:
        assert agent.report.phase in {TrainerPhase.STARTING, TrainerPhase.RUNNING}, "no trainer runs there"
        ended = TrainerExit(agent.report.attempt, code, max(0, code - 128), cause)
        agent.say(self.now, phase=TrainerPhase.EXITED, exit=ended)

    def commit(self, step: int) -> None:
        """Worker 0 commits a periodic checkpoint."""
        agent = self.agent(0)
        agent.say(self.now, newest=CheckpointRef(agent.report.attempt, step, f"d{agent.report.attempt}-{step}"))

    def taint(
        self, node: str, key: str = "karpenter.sh/disrupted", effect: str = "NoSchedule", *, age_seconds: float = 0.0
    ) -> None:
        added_at = self.now - timedelta(seconds=age_seconds)
        self.nodes[node] = replace(self.nodes[node], taints=(Taint(key, "", effect, added_at),))

    def cordon(self, node: str) -> None:
        self.nodes[node] = replace(self.nodes[node], unschedulable=True)

    def uncordon(self, node: str) -> None:
        self.nodes[node] = replace(self.nodes[node], unschedulable=False)

    def remove_node(self, node: str) -> None:
        """The node object is deleted and its machine ends; its pods stay in the API for a while."""
        for pod in self.pods.values():
            if pod.node == node and pod.uid in self.agents:
                self.agents[pod.uid].silent = True
        del self.nodes[node]

    def member(self, index: int) -> PodFact:
        """The pod in which this worker trains."""
        pod = JobView.of(self.observe(), self.now).workers[index].pod
        assert pod is not None
        return pod

    def delete_pod(self, index: int, grace_seconds: float = 30.0) -> None:
        """Somebody deletes the worker's pod: it terminates within its grace period."""
        pod = self.member(index)
        ends_at = self.now + timedelta(seconds=grace_seconds)
        self.pods[pod.name] = replace(pod, deleted_at=ends_at, grace_seconds=grace_seconds)

    def untaint(self, node: str) -> None:
        self.nodes[node] = replace(self.nodes[node], taints=())

    def lose_node(self, node: str) -> None:
        """The node and everything on it is gone."""
        for pod in self.pods.values():
            if pod.node == node and pod.uid in self.agents:
                self.agents[pod.uid].silent = True
        self.nodes[node] = replace(self.nodes[node], conditions=(NodeCondition("Ready", "Unknown", "", self.now),))

    def lose_pod(self, index: int) -> None:
        """Somebody removes the pod of a worker at once."""
        name = max((p for p in self.pods.values() if p.index == index), key=lambda p: p.created_in_attempt).name
        self.agents.pop(self.pods[name].uid, None)
        del self.pods[name]

    def end_pod(self, name: str, code: int, reason: str = "") -> None:
        phase = "Succeeded" if code == 0 else "Failed"
        self.pods[name] = replace(self.pods[name], phase=phase, end=ContainerEnd(code, reason=reason))
        if (agent := self.agents.get(self.pods[name].uid)) is not None:  # a pod that never ran has none
            agent.silent = True

    def set_spec(self, **changes: Any) -> None:
        self.spec = self.spec.model_copy(update=changes)

    def node_of(self, index: int) -> str:
        return max((p for p in self.pods.values() if p.index == index), key=lambda p: p.created_in_attempt).node
