"""Pods that become unusable before their attempt begins: one policy for all reasons.

The kubelet rejects a pod, or it is evicted, deleted, lost or fails: its worker gets another pod, at once after the first
setback, then after a growing wait (``backoff``). The new pod prefers other nodes than the one of the last. The pods of
the other workers are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta

from holdfast_contract.api import Setback, TrainingJobStatus
from holdfast_contract.api_status import MAX_SETBACKS
from holdfast_operator.decide import backoff
from holdfast_operator.decide.facts import PodFact
from holdfast_operator.decide.members import JobView


def note(view: JobView, status: TrainingJobStatus, workers: Iterable[int]) -> TrainingJobStatus:
    """The status after the newest pods of these workers became unusable.

    Args:
        view: the job.
        status: the status to change.
        workers: indices of the workers.
    """
    known = {setback.worker: setback for setback in status.setbacks}
    for index in sorted(workers):
        before = known.pop(index, None)
        known[index] = _setback(view, index, before.count + 1 if before is not None else 1)
    return status.model_copy(update={"setbacks": tuple(known.values())[-MAX_SETBACKS:]})


def _setback(view: JobView, index: int, count: int) -> Setback:
    worker = view.workers[index]
    pod = worker.incoming or worker.pod
    wait = timedelta(seconds=backoff.wait_seconds(f"{view.job.uid}/{index}", count))
    retry_at = view.now + wait
    return Setback(
        worker=index,
        count=count,
        reason=_reason(view, pod)[:317],
        node=pod.node if pod is not None else "",
        retry_at=retry_at.replace(microsecond=retry_at.microsecond // 1000 * 1000),
    )


def _reason(view: JobView, pod: PodFact | None) -> str:
    if pod is None:
        return "deleted"
    if view.lost_node(pod) is not None:
        return "its node is lost"
    if pod.reason or pod.disruption:
        return pod.reason or pod.disruption
    if pod.end is not None:
        return f"exit code {pod.end.exit_code}"
    return "deleted" if pod.terminating else pod.phase


def wait_left_seconds(view: JobView, index: int) -> float:
    """Seconds until the worker may get its next pod; 0: now."""
    found = (s for s in view.status.setbacks if s.worker == index)
    return max((max(0.0, (s.retry_at - view.now).total_seconds()) for s in found), default=0.0)


def shunned_nodes(view: JobView, index: int) -> tuple[str, ...]:
    """The nodes that the worker's next pod should not go to if it can go elsewhere."""
    return tuple(s.node for s in view.status.setbacks if s.worker == index and s.node)


def describe(status: TrainingJobStatus) -> Iterator[str]:
    """Each wait in words, with its end."""
    for setback in status.setbacks[:8]:
        place = f" on node {setback.node}" if setback.node else ""
        times = "once" if setback.count == 1 else f"{setback.count} times in a row"
        until = setback.retry_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        what = f"its pod became unusable {times} ({setback.reason}{place})"
        yield f"worker {setback.worker}: {what}, the next one is created not before {until}"
