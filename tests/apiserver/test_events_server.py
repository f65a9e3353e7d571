"""Events as people read them: which ones a job's life leaves, in which order, and how repetitions are told."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from holdfast_contract import keys
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import Condition, Reason
from holdfast_contract.sync import Progress, TrainerExit, TrainerPhase
from holdfast_operator.decide import conditions
from holdfast_operator.decide.actions import Event
from holdfast_operator.gateway.kube import Kube
from holdfast_operator.gateway.kube_errors import Unavailable
from holdfast_operator.telemetry.event_recorder import MAX_NOTE_BYTES, EventRecorder
from tests.support.cluster.crd_server import connect
from tests.support.cluster.kubectl import kubectl
from tests.support.cluster.manifests import training_job
from tests.support.operator.reconcile_rig import Rig

PERIODIC_SAVES = 12
BURST = 40
"""More than twelve: up to so many, sorting happens to keep the order of equals."""


@pytest.fixture
def job(kubeconfig: Path, namespace: str) -> Any:
    """A stored job that nobody reconciles."""
    with connect(kubeconfig, namespace) as jobs:
        return jobs.api.create_namespaced_custom_object(
            keys.API_GROUP, keys.VERSION, namespace, keys.PLURAL, training_job("job", namespace=namespace)
        )


def configuration(kubeconfig: Path) -> Any:
    made = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=made)
    return made


def listed(kubeconfig: Path, namespace: str, *more: str) -> list[dict[str, Any]]:
    """The Events in the order in which kubectl gives them."""
    answer = kubectl(kubeconfig, "-n", namespace, "get", "events", "-o", "json", *more)
    found: list[dict[str, Any]] = [e for e in json.loads(answer)["items"] if e["involvedObject"]["kind"] == keys.KIND]
    return found


READERS: dict[str, Callable[[Path, str], list[str]]] = {
    "get": lambda k, ns: [e["message"] for e in listed(k, ns)],
    "get --sort-by": lambda k, ns: [e["message"] for e in listed(k, ns, "--sort-by=.eventTime")],
    "events --for": lambda k, ns: _rows(
        kubectl(k, "-n", ns, "events", f"--for={keys.SINGULAR}.{keys.API_GROUP}/job", "--no-headers")
    ),
    "describe": lambda k, ns: _rows(
        kubectl(k, "-n", ns, "describe", f"{keys.PLURAL}.{keys.API_GROUP}", "job").partition("\nEvents:")[2]
    ),
}


def _rows(table: str) -> list[str]:
    """The last column of kubectl's tables; the head of one is set off by a rule."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in table.strip().splitlines()]
    rules = [i for i, row in enumerate(rows) if row[0].startswith("----")]
    return [row[-1] for row in rows[rules[0] + 1 if rules else 0 :]]


def flush(recorder: EventRecorder) -> None:
    asyncio.run(recorder.flush())


# ---- a job's life


def test_a_life_is_told_in_causal_order_and_periodic_saves_are_not_told(play: Rig, kubeconfig: Path) -> None:
    """A start, many checkpoints, a crash, a notice, a suspension and the end; the operator is replaced after each."""
    play.record()
    play.apply()
    play.settle(lambda: trains(play))
    for step in range(1, PERIODIC_SAVES + 1):
        commit(play, step)
    replace_operator(play)
    play.crash("job-1-0", 1)
    play.settle(lambda: trains(play, 2))
    commit(play, PERIODIC_SAVES + 1)
    replace_operator(play)
    node = play.pods()["job-1-0"].spec.node_name
    play.taint(node, "karpenter.sh/disrupted")
    play.settle(lambda: trains(play, 3) and len(play.pods()) == 2)
    play.taint(node, "karpenter.sh/disrupted", present=False)
    replace_operator(play)
    play.patch({"spec": {"suspend": True}})
    play.settle(lambda: conditions.holds(play.job().status, Condition.SUSPENDED) and not play.pods())
    play.patch({"spec": {"suspend": False}})
    play.settle(lambda: trains(play, 4))
    commit(play, 50)
    for pod in play.pods().values():
        report = play.reports[pod.metadata.uid]
        play.reports[pod.metadata.uid] = replace(
            report, phase=TrainerPhase.EXITED, exit=TrainerExit(report.attempt, 0), progress=Progress(1000, 1000)
        )
    play.settle(lambda: conditions.holds(play.job().status, Condition.SUCCEEDED))

    told = [e["reason"] for e in listed(kubeconfig, play.namespace)]
    assert told == [
        Reason.ACCEPTED,
        Reason.ATTEMPT_STARTED,
        Reason.CHECKPOINT_COMMITTED,  # the first of all, and no other
        Reason.WORKER_CRASHED,
        Reason.RECOVERING,
        Reason.RESTARTING_IN_PLACE,
        Reason.CHECKPOINT_RESTORED,
        Reason.PREEMPTION_NOTICED,
        Reason.PREEMPTION_SAVED,
        Reason.WORKERS_PENDING,
        Reason.WORKER_MOVED,
        Reason.RECOVERING,
        Reason.ATTEMPT_STARTED,
        Reason.CHECKPOINT_RESTORED,
        Reason.SUSPENDING,
        Reason.SUSPENDED_BY_USER,
        Reason.RESUMED,
        Reason.RECOVERING,
        Reason.ATTEMPT_STARTED,
        Reason.CHECKPOINT_RESTORED,
        Reason.COMPLETED,
    ]
    words = [e.message for e in play.outlets.events]
    for name, read in READERS.items():
        assert read(kubeconfig, play.namespace) == words, name


def trains(play: Rig, attempt: int = 1) -> bool:
    status = play.job().status
    return status.active_attempt == attempt and conditions.holds(status, Condition.RUNNING)


def commit(play: Rig, step: int) -> None:
    """All workers report a periodic checkpoint of this step; waits until the status has it."""
    attempt = play.job().status.active_attempt
    for pod in play.pods().values():
        report = play.reports[pod.metadata.uid]
        newest = CheckpointRef(attempt, step, "d" * 64)
        play.reports[pod.metadata.uid] = replace(report, newest=newest, progress=Progress(step, 1000, 0.01))

    def seen() -> bool:
        newest = play.job().status.checkpoint.newest
        return newest is not None and (newest.attempt, newest.step) == (attempt, step)

    play.settle(seen)


def replace_operator(play: Rig) -> None:
    """The next operator knows neither what was said nor what was reported."""
    play.start_operator()
    play.record()
    play.settle(lambda: trains(play, play.job().status.active_attempt))


# ---- the recorder


@pytest.mark.parametrize("reader", READERS)
def test_a_burst_within_one_second_keeps_its_order(
    kube: Kube, job: Any, kubeconfig: Path, namespace: str, reader: str
) -> None:
    recorder = EventRecorder(kube, "operator")
    words = [f"number {i:02d} of a burst" for i in range(BURST)]
    for text in words:
        recorder.emit(job, Event(Reason.RECOVERING, text))
    flush(recorder)
    assert READERS[reader](kubeconfig, namespace) == words


def test_repetitions_are_one_event_with_a_count(kube: Kube, job: Any, kubeconfig: Path, namespace: str) -> None:
    time_now = 0.0
    recorder = EventRecorder(kube, "operator", lambda: time_now)

    def say(times: int) -> None:
        for _ in range(times):
            recorder.emit(job, Event(Reason.POD_CREATION_FAILED, "pod job-0-0: exceeded quota", "Warning"))
        flush(recorder)

    def seen() -> list[int]:
        return [(e.get("series") or {"count": 1})["count"] for e in listed(kubeconfig, namespace)]

    say(1)
    assert seen() == [1]
    say(1)
    assert seen() == [2], "the first repetition is told at once"
    say(5)
    assert seen() == [2], "later ones only now and then"
    time_now += 61.0
    say(1)
    assert seen() == [8]
    assert "x8 over" in kubectl(kubeconfig, "-n", namespace, "describe", f"{keys.PLURAL}.{keys.API_GROUP}", "job")
    time_now += 361.0
    say(1)
    assert seen() == [8, 1], "after a long silence it is news"


def test_a_repetition_of_an_event_that_is_no_longer_kept_is_told_anew(
    kube: Kube, job: Any, kubeconfig: Path, namespace: str
) -> None:
    recorder = EventRecorder(kube, "operator")
    recorder.emit(job, Event(Reason.RECOVERING, "again"))
    flush(recorder)
    kubectl(kubeconfig, "-n", namespace, "delete", "events", "--all")
    recorder.emit(job, Event(Reason.RECOVERING, "again"))
    flush(recorder)
    [found] = listed(kubeconfig, namespace)
    assert found["series"]["count"] == 2


def test_a_message_of_any_length_and_script_is_taken(kube: Kube, job: Any, kubeconfig: Path, namespace: str) -> None:
    recorder = EventRecorder(kube, "operator")
    recorder.emit(job, Event(Reason.SAVE_FAILED, "Plattenfüllstände: 満杯 " * 200, "Warning"))
    flush(recorder)
    [found] = listed(kubeconfig, namespace)
    assert MAX_NOTE_BYTES - 4 < len(found["message"].encode()) <= MAX_NOTE_BYTES


def test_an_event_whose_answer_was_lost_is_written_once(job: Any, kubeconfig: Path, namespace: str) -> None:
    kube = Kube(configuration(kubeconfig))
    send, lost = kube._transport.request, list[str]()

    async def request(method: str, path: str, *, what: str, **options: Any) -> dict[str, Any]:
        answer = await send(method, path, what=what, **options)
        if not lost:
            lost.append(what)
            raise Unavailable(what, message="the connection broke after the write")
        return answer

    kube._transport.request = request  # type: ignore[method-assign]
    recorder = EventRecorder(kube, "operator")
    recorder.emit(job, Event(Reason.RECOVERING, "once"))
    flush(recorder)
    kube.close()
    assert lost
    assert [e["message"] for e in listed(kubeconfig, namespace)] == ["once"]


def test_what_was_said_before_the_end_is_written(kube: Kube, job: Any, kubeconfig: Path, namespace: str) -> None:
    recorder = EventRecorder(kube, "operator")

    async def live_and_end() -> None:
        running = asyncio.create_task(recorder.run())
        await asyncio.sleep(0)
        for i in range(5):
            recorder.emit(job, Event(Reason.RECOVERING, f"word {i}"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(live_and_end())
    assert [e["message"] for e in listed(kubeconfig, namespace)] == [f"word {i}" for i in range(5)]
