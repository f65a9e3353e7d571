"""Where the sync endpoint and the reconciler meet: the newest report and the current directive of every worker.

In memory only: after a restart one round of reports and one reconcile per job bring everything back. Runs on one
event loop; no method but ``directive`` waits.
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
    """A pod as its token proves it: a name may come again, a UID never does."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Received:
    """A report and the local monotonic instant at which it came."""

    report: sync.Report
    received_monotonic: float


@dataclass(frozen=True)
class NotMember:
    """The pod is no worker of the job (any more)."""


@dataclass(frozen=True)
class NotReady:
    """Nobody has decided about this pod since this process began to lead; ask again."""


NOT_MEMBER: Final = NotMember()
NOT_READY: Final = NotReady()

Answer = sync.Directive | NotMember | NotReady


@dataclass(frozen=True)
class _Published:
    """A directive and when it was said; ``directive.save.seconds_left`` counts from there."""

    directive: sync.Directive
    published_monotonic: float

    def aged(self, now: float) -> sync.Directive:
        """The directive with what is left of its seconds."""
        save = self.directive.save
        if save is None:
            return self.directive
        left = max(0.0, save.seconds_left - (now - self.published_monotonic))
        return dataclasses.replace(self.directive, save=dataclasses.replace(save, seconds_left=left))


@dataclass
class _Job:
    reports: dict[PodIdentity, Received] = field(default_factory=dict)
    directives: dict[PodIdentity, _Published] | None = None  # None: never published
    publishes: int = 0
    former: set[PodIdentity] = field(default_factory=set)  # were members and are no longer
    strangers: dict[PodIdentity, int] = field(default_factory=dict)  # `publishes` when they first asked
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set and replaced at each publish


class Board:
    """Reports in, directives out. ``wake`` is called with a job's key when a report changes in meaning."""

    def __init__(
        self, wake: Callable[[str, str], None] = lambda _ns, _job: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake = wake
        self._clock = clock
        self._jobs: dict[JobKey, _Job] = {}
        self._closed = False

    def open(self) -> None:
        """Begin to serve as leader, knowing nothing: what an earlier term said no longer counts."""
        self._jobs.clear()
        self._closed = False

    def close(self) -> None:
        """Stop serving at once: every held request is answered NOT_READY, and none is held from now on."""
        self._closed = True
        for job in self._jobs.values():
            job.changed.set()

    def put_report(self, who: PodIdentity, job_name: str, report: sync.Report) -> None:
        """Remember a report; wake the job if it says something that a decision may depend on."""
        job = self._job(who.namespace, job_name)
        if self._judge(job, who) is NOT_MEMBER:
            return  # its words must neither pile up nor wake anybody
        if job.directives is None or who not in job.directives:
            job.strangers.setdefault(who, job.publishes)
        before = job.reports.get(who)
        job.reports[who] = Received(report, self._clock())
        if before is None or before.report.meaning() != report.meaning():
            self._wake(who.namespace, job_name)

    def reports(self, namespace: str, job_name: str) -> Mapping[PodIdentity, Received]:
        """The newest report of each pod of a job, as of now."""
        job = self._jobs.get(JobKey(namespace, job_name))
        return dict(job.reports) if job is not None else {}

    def publish(self, namespace: str, job_name: str, directives: Mapping[PodIdentity, sync.Directive]) -> None:
        """Replace the whole set of a job's directives; seconds left count from this instant.

        A pod that was in an earlier set and is not in this one is a member no longer, from now on. A pod that was in
        none may have been created after this set was observed: it is refused only by the second set that lacks it.
        """
        job = self._job(namespace, job_name)
        now = self._clock()
        job.former |= set(job.directives or ()) - directives.keys()
        job.former -= directives.keys()
        job.directives = {who: _Published(d, now) for who, d in directives.items()}
        job.publishes += 1
        job.strangers = {who: asked for who, asked in job.strangers.items() if who not in directives}
        for who in [who for who in job.reports if self._judge(job, who) is NOT_MEMBER]:
            del job.reports[who]
        changed, job.changed = job.changed, asyncio.Event()
        changed.set()
        if any(self._judge(job, who) is NOT_READY for who in job.strangers):
            self._wake(namespace, job_name)

    def forget(self, namespace: str, job_name: str) -> None:
        """The job is gone: whoever still asks for it is no member."""
        job = self._jobs.pop(JobKey(namespace, job_name), None)
        if job is not None:
            job.directives = {}
            job.changed.set()

    def current(self, who: PodIdentity, job_name: str) -> Answer:
        """What the pod is told now, without waiting."""
        job = self._jobs.get(JobKey(who.namespace, job_name))
        return NOT_READY if self._closed or job is None else self._judge(job, who)

    async def directive(self, who: PodIdentity, job_name: str, obeys_tag: str, hold_seconds: float) -> Answer:
        """The pod's directive: at once if its tag is not ``obeys_tag``, else when it changes, else after the hold.

        A pod that its job has not decided about yet is held too (its reconcile is on the way); NOT_READY after that.
        """
        deadline = self._clock() + hold_seconds
        while True:
            job = self._job(who.namespace, job_name)
            changed = job.changed
            answer = self._judge(job, who)
            obeyed = isinstance(answer, sync.Directive) and answer.tag == obeys_tag
            left = deadline - self._clock()
            if self._closed or left <= 0 or not (obeyed or answer is NOT_READY):
                return NOT_READY if self._closed else answer
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                continue
            if changed is job.changed:  # closed or forgotten, not published anew
                return NOT_READY if self._closed else NOT_MEMBER

    def _judge(self, job: _Job, who: PodIdentity) -> Answer:
        if job.directives is None:
            return NOT_READY
        published = job.directives.get(who)
        if published is not None:
            return published.aged(self._clock())
        if who in job.former:
            return NOT_MEMBER
        asked = job.strangers.get(who, job.publishes)
        return NOT_MEMBER if job.publishes >= asked + 2 else NOT_READY

    def _job(self, namespace: str, name: str) -> _Job:
        return self._jobs.setdefault(JobKey(namespace, name), _Job())
