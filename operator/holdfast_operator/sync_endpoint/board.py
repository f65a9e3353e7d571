"""The board between the sync endpoint and the reconciler: the newest report and the current directive of every worker.

It is in memory only: after a restart, one round of reports and one pass per job fill it again. It runs on one event
loop, and only ``directive`` waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast_contract import sync
from holdfast_contract.identity import JobKey


@dataclass(frozen=True)
class PodIdentity:
    """A pod as its token proves it. A name may be used again, a UID never is."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Received:
    """A report and the local monotonic instant of its arrival."""

    report: sync.Report
    received_monotonic: float


@dataclass(frozen=True)
class NotMember:
    """The pod is not, or no longer, a worker of the job."""


@dataclass(frozen=True)
class NotReady:
    """The operator has not decided about this pod since this process began to lead; the agent asks again."""


NOT_MEMBER: Final = NotMember()
NOT_READY: Final = NotReady()

Answer = sync.Directive | NotMember | NotReady


@dataclass(frozen=True)
class _Published:
    """A directive and the instant of its publication, from which ``directive.save.seconds_left`` counts."""

    directive: sync.Directive
    published_monotonic: float

    def aged(self, now: float) -> sync.Directive:
        """The directive with the seconds that are left now."""
        save = self.directive.save
        if save is None or save.seconds_left is None:
            return self.directive
        left = max(0.0, save.seconds_left - (now - self.published_monotonic))
        return dataclasses.replace(self.directive, save=dataclasses.replace(save, seconds_left=left))


@dataclass
class _Job:
    reports: dict[PodIdentity, Received] = field(default_factory=dict)
    directives: dict[PodIdentity, _Published] | None = None  # None: never published
    publishes: int = 0
    former: set[PodIdentity] = field(default_factory=set)  # pods that were members and are not any more
    first_asked: dict[PodIdentity, int] = field(
        default_factory=dict
    )  # pods without a directive: `publishes` at their first report
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set and replaced at each publish


class Board:
    """Takes reports and gives directives. ``wake`` is called with a job's key when a report changes in meaning."""

    def __init__(
        self, wake: Callable[[str, str], None] = lambda _ns, _job: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake = wake
        self._clock = clock
        self._jobs: dict[JobKey, _Job] = {}
        self._closed = False
        self.opened_monotonic = clock()
        """The local monotonic instant since which reports arrive here."""

    def open(self) -> None:
        """Begin to serve as leader, empty: directives of an earlier term no longer count."""
        self._jobs.clear()
        self.opened_monotonic = self._clock()
        self._closed = False

    def close(self) -> None:
        """Stop serving at once: every held request returns NOT_READY, and none is held from now on."""
        self._closed = True
        for job in self._jobs.values():
            job.changed.set()

    def put_report(self, pod: PodIdentity, job_name: str, report: sync.Report) -> None:
        """Store a report, and wake the job if a decision may depend on what changed in it.

        Args:
            pod: the pod that reports.
            job_name: the job it works for.
            report: the report; a pod that is not a member is ignored.
        """
        job = self._job(pod.namespace, job_name)
        if self._answer_to(job, pod) is NOT_MEMBER:
            return  # its reports must neither pile up nor wake the job
        if job.directives is None or pod not in job.directives:
            job.first_asked.setdefault(pod, job.publishes)
        before = job.reports.get(pod)
        job.reports[pod] = Received(report, self._clock())
        if before is None or before.report.meaning() != report.meaning():
            self._wake(pod.namespace, job_name)

    def reports(self, namespace: str, job_name: str) -> Mapping[PodIdentity, Received]:
        """The newest report of each pod of a job, as of now."""
        job = self._jobs.get(JobKey(namespace, job_name))
        return dict(job.reports) if job is not None else {}

    def slowest_step(self, namespace: str, job_name: str) -> int | None:
        """The last completed step of the slowest worker that trains; None if none reports one. Safe from any thread."""
        job = self._jobs.get(JobKey(namespace, job_name))
        reports = [received.report for received in list(job.reports.values())] if job is not None else []
        steps = [
            r.progress.last_completed_step
            for r in reports
            if r.progress is not None and r.phase is sync.TrainerPhase.RUNNING
        ]
        return min(steps, default=None)

    def publish(self, namespace: str, job_name: str, directives: Mapping[PodIdentity, sync.Directive]) -> None:
        """Replace all directives of a job. ``seconds_left`` in them counts from this instant.

        A pod that an earlier set named and this one does not is no longer a member. A pod that no set ever named may
        have been created after this set was decided: it is refused only by the second set that does not name it.

        Args:
            namespace: the job's namespace.
            job_name: the job's name.
            directives: the directive of each member.
        """
        job = self._job(namespace, job_name)
        now = self._clock()
        job.former |= set(job.directives or ()) - directives.keys()
        job.former -= directives.keys()
        job.directives = {pod: _Published(d, now) for pod, d in directives.items()}
        job.publishes += 1
        job.first_asked = {pod: asked for pod, asked in job.first_asked.items() if pod not in directives}
        for pod in [pod for pod in job.reports if self._answer_to(job, pod) is NOT_MEMBER]:
            del job.reports[pod]
        changed, job.changed = job.changed, asyncio.Event()
        changed.set()
        if any(self._answer_to(job, pod) is NOT_READY for pod in job.first_asked):
            self._wake(namespace, job_name)

    def has_published(self, namespace: str, job_name: str, directives: Mapping[str, sync.Directive] | None) -> bool:
        """Whether these directives stand already and no pod waits for its first one, so that publishing changes nothing.

        Args:
            namespace: the job's namespace.
            job_name: the job's name.
            directives: the directives by pod UID; None: whatever stands is to stay.
        """
        job = self._jobs.get(JobKey(namespace, job_name))
        if job is None or job.directives is None:
            return False
        if any(self._answer_to(job, pod) is NOT_READY for pod in job.first_asked):
            return False
        return directives is None or {pod.uid: p.directive for pod, p in job.directives.items()} == directives

    def forget(self, namespace: str, job_name: str) -> None:
        """Remove a job that no longer exists: no pod is a member of it any more."""
        job = self._jobs.pop(JobKey(namespace, job_name), None)
        if job is not None:
            job.directives = {}
            job.changed.set()

    def current(self, pod: PodIdentity, job_name: str) -> Answer:
        """The pod's directive now, without waiting."""
        job = self._jobs.get(JobKey(pod.namespace, job_name))
        return NOT_READY if self._closed or job is None else self._answer_to(job, pod)

    async def directive(self, pod: PodIdentity, job_name: str, obeys_tag: str, hold_seconds: float) -> Answer:
        """The pod's directive, held back while the pod obeys it already.

        Returns at once if the directive's tag differs from ``obeys_tag``; else when the directive changes, or after
        the hold. A pod without a decision is held, too, and gets NOT_READY after the hold.

        Args:
            pod: the pod that asks.
            job_name: the job it works for.
            obeys_tag: tag of the directive that the pod obeys now.
            hold_seconds: the longest wait.
        """
        deadline = self._clock() + hold_seconds
        while True:
            job = self._job(pod.namespace, job_name)
            changed = job.changed
            answer = self._answer_to(job, pod)
            obeyed = isinstance(answer, sync.Directive) and answer.tag == obeys_tag
            left = deadline - self._clock()
            if self._closed or left <= 0 or not (obeyed or answer is NOT_READY):
                return NOT_READY if self._closed else answer
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                continue
            if changed is job.changed:  # the board was closed or the job removed; nothing was published
                return NOT_READY if self._closed else NOT_MEMBER

    def _answer_to(self, job: _Job, pod: PodIdentity) -> Answer:
        if job.directives is None:
            return NOT_READY
        published = job.directives.get(pod)
        if published is not None:
            return published.aged(self._clock())
        if pod in job.former:
            return NOT_MEMBER
        asked = job.first_asked.get(pod, job.publishes)
        return NOT_MEMBER if job.publishes >= asked + 2 else NOT_READY

    def _job(self, namespace: str, name: str) -> _Job:
        return self._jobs.setdefault(JobKey(namespace, name), _Job())
