"""Sessions under the rules of a job, as a pod's environment gives them: what is saved, and what is left on storage."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import holdfast
from holdfast.errors import RequestFailed
from holdfast.store.format import fs
from holdfast_contract import codec, keys
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import RunFolder
from holdfast_contract.sync import FailureHistory
from tests.support.operator.job_policy import policy_of
from tests.support.polling import until

STEPS = 8
LOSSES = {1: 5.0, 2: 1.0, 3: float("nan"), 4: 4.0, 5: 0.5, 6: 6.0, 7: 7.0, 8: 8.0}
WAIT_SECONDS = 30.0

EVERY = [
    ({"steps": 3}, [3, 6, 8]),
    ({"atSteps": [2, 5]}, [2, 5, 8]),
    ({"onlyAtEnd": True}, [8]),
    ({"anyOf": [{"atSteps": [2]}, {"steps": 3}]}, [2, 3, 6, 8]),
    ({"allOf": [{"steps": 2}, {"atSteps": [3, 4]}]}, [4, 8]),
    ({"anyOf": [{"allOf": [{"steps": 2}, {"atSteps": [3, 4]}]}, {"atSteps": [7]}]}, [4, 7, 8]),
]
# Deleting goes on while training does: the newest are counted among what is left.
KEEP = [
    ({}, [6, 7, 8]),
    ({"latest": 4}, [5, 6, 7, 8]),
    ({"latest": 2, "best": 2, "metric": "loss"}, [2, 5, 7, 8]),
    ({"latest": 2, "best": 1, "metric": "loss", "mode": "max"}, [7, 8]),
    ({"latest": 2, "everySteps": 3}, [3, 6, 7, 8]),
    ({"latest": 2, "everySeconds": 100_000}, [1, 7, 8]),
    ({"latest": 2, "steps": [1, 4]}, [1, 4, 7, 8]),
    ({"all": True}, [1, 2, 3, 4, 5, 6, 7, 8]),
    ({"latest": 2, "anyOf": [{"steps": [1]}, {"allOf": [{"latest": 5}, {"everySteps": 2}]}]}, [1, 2, 4, 6, 7, 8]),
    ({"latest": 2, "allOf": [{"latest": 4}, {"everySteps": 5}]}, [5, 7, 8]),
]


def train(where: Path, monkeypatch: pytest.MonkeyPatch, policy: str, **arguments: Any) -> None:
    monkeypatch.setenv(keys.ENV_CHECKPOINT_POLICY, policy)
    with holdfast.session(where, **arguments) as run:
        run.restore(lambda: {"n": jnp.int32(0)})
        for step in run.steps(until=STEPS):
            run.commit(step, {"n": jnp.int32(step)}, metrics={"loss": LOSSES[step]})


def wait_for_steps(where: Path, steps: list[int]) -> None:
    """Deleting goes on behind the end of the session."""
    folder = RunFolder(where / "default")
    until(lambda: sorted(r.step for r in folder.candidates()) == steps, WAIT_SECONDS, f"checkpoints {steps}")


@pytest.mark.parametrize(("every", "steps"), EVERY, ids=str)
def test_what_a_job_says_is_saved(
    every: dict[str, Any], steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, monkeypatch, policy_of(every=every, keep={"all": True}))
    wait_for_steps(tmp_path, steps)


@pytest.mark.parametrize(("keep", "steps"), KEEP, ids=str)
def test_what_a_job_says_is_kept(
    keep: dict[str, Any], steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, monkeypatch, policy_of(every={"steps": 1}, keep=keep))
    wait_for_steps(tmp_path, steps)


def test_what_a_job_calls_unhealthy_is_never_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        keys.ENV_CHECKPOINT_POLICY,
        policy_of(
            every={"steps": 1},
            keep={"latest": 2, "best": 1, "metric": "loss"},
            healthy={"finite": ["loss", "norm"]},
        ),
    )
    norms = {5: float("inf")}
    with holdfast.session(tmp_path) as run:
        run.restore(lambda: {"n": jnp.int32(0)})
        for step in run.steps(until=STEPS):
            metrics = {"loss": LOSSES[step], "norm": norms.get(step, 1.0)}
            run.commit(step, {"n": jnp.int32(step)}, metrics=metrics)
    wait_for_steps(tmp_path, [2, 7, 8])


def test_an_object_without_a_session_heeds_what_the_job_says_of_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = {"latest": 2, "best": 1, "metric": "loss"}
    monkeypatch.setenv(keys.ENV_CHECKPOINT_POLICY, policy_of(keep=keep, healthy={"finite": ["norm"]}))
    with holdfast.Checkpointer(tmp_path, {"n": jnp.int32(0)}) as checkpointer:
        checkpointer.restore()
        for step in range(1, STEPS + 1):
            metrics = {"loss": LOSSES[step], "norm": float("nan") if step == 5 else 1.0}
            checkpointer.save(step, metrics, model={"n": jnp.int32(step)})
    wait_for_steps(tmp_path, [2, 7, 8])


def saved_in(where: Path, seconds: float, enough: int, loss: float = 1.0) -> int:
    """How many saves a session makes that trains for so long, or until there are enough."""
    deadline = time.monotonic() + seconds
    saved = 0
    with holdfast.session(where) as run:
        run.restore(lambda: {"n": jnp.int32(0)})
        for step in run.steps(until=None):
            run.commit(step, {"n": jnp.int32(step)}, metrics={"loss": loss})
            saved = len(list((where / "default" / "1").glob(f"*/{keys.MANIFEST_FILE}")))
            if saved >= enough or time.monotonic() > deadline:
                break
    return saved


def test_a_job_that_fails_often_saves_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rule, the same cost of a save; only what the operator has observed differs."""
    every = {"adaptive": {"minSeconds": 1, "maxSeconds": 10_000, "priorMeanSecondsBetweenFailures": 10_000_000}}
    monkeypatch.setenv(keys.ENV_CHECKPOINT_POLICY, policy_of(every=every, keep={"all": True}))
    monkeypatch.setenv(keys.ENV_FAILURES, codec.encode(FailureHistory(10_000_000, 1.0)).decode())
    assert saved_in(tmp_path / "often", WAIT_SECONDS, enough=3) == 3
    monkeypatch.setenv(keys.ENV_FAILURES, codec.encode(FailureHistory(0, 1e9)).decode())
    # The first save, which measures what one costs, comes after a second; the next would come after some minutes.
    assert saved_in(tmp_path / "never", 4.0, enough=2) == 1


def test_a_job_saves_often_while_its_metric_is_unstable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = {"whenUnstable": {"minSeconds": 1, "baseSeconds": 1000, "maxSeconds": 10_000}}
    monkeypatch.setenv(keys.ENV_CHECKPOINT_POLICY, policy_of(every=every, keep={"all": True}))
    assert saved_in(tmp_path / "unstable", WAIT_SECONDS, enough=2, loss=float("nan")) == 2
    assert saved_in(tmp_path / "calm", 2.5, enough=1) == 0


def test_a_save_before_an_evaluation_is_committed_while_that_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "default")
    with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
        run.restore(lambda: {"n": jnp.int32(0)})
        for step in run.steps(until=STEPS):
            evaluates = step == 4
            run.commit(step, {"n": jnp.int32(step)}, save=evaluates)
            if evaluates:  # the evaluation: no step is made meanwhile
                until(lambda: [r.step for r in folder.candidates()] == [4], WAIT_SECONDS, "the save before it")
    assert [ref.step for ref in folder.candidates()] == [8, 4]


def test_a_save_on_demand_is_made_and_answered(tmp_path: Path) -> None:
    answers: list[Future[CheckpointRef]] = []
    with holdfast.session(tmp_path, every=holdfast.only_at_end()) as run:
        run.restore(lambda: {"n": jnp.int32(0)})
        deadline = time.monotonic() + WAIT_SECONDS
        for step in run.steps(until=None):
            if step == 5:
                answers.append(run.request_save())
            run.commit(step, {"n": jnp.int32(step)})
            if answers and answers[0].done():
                break
            assert time.monotonic() < deadline
        asked_late = run.request_save()
        with pytest.raises(ValueError, match="within_seconds: found 0"):
            run.request_save(0)
    saved = answers[0].result(0)
    assert saved.attempt == 1
    assert 5 <= saved.step <= step, "no step before the request answers it, and no rule asked for a save"
    assert saved in RunFolder(tmp_path / "default").candidates()
    # Training ended: the newest checkpoint answers if no step is missing in it, else it says why there is none.
    error = asked_late.exception(0)
    if error is not None:
        assert isinstance(error, RequestFailed)
        assert "training ended at step" in str(error)


def test_a_save_on_demand_that_cannot_be_in_time_says_so(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, every=holdfast.at_steps(1)) as run:
        run.restore(lambda: {"n": jnp.int32(0)})
        deadline = time.monotonic() + WAIT_SECONDS
        answer = None
        for step in run.steps(until=None):
            run.commit(step, {"n": jnp.int32(step)})
            if run.newest is not None and answer is None:
                answer = run.request_save(within_seconds=1e-9)
            if answer is not None and answer.done():
                break
            assert time.monotonic() < deadline
    assert answer is not None
    with pytest.raises(RequestFailed, match="s are left") as caught:
        answer.result(0)
    assert caught.value.outcome == "too-late"


def test_whoever_looks_after_the_end_sees_what_the_rules_keep(tmp_path: Path) -> None:
    """Storage that is slow to delete does not leave more than was asked for behind the end of training."""

    def slow(operation: str, path: Path) -> None:
        if operation == "before:rename" and path.name.startswith(fs.TRASH_PREFIX):
            threading.Event().wait(0.3)

    params = {"w": jnp.zeros(3)}
    fs.set_fault_hook(slow)
    try:
        keep = holdfast.keep(latest=2)
        with holdfast.session(tmp_path, run="run", every=holdfast.every_steps(1), keep=keep) as run:
            run.restore(lambda: params)
            for step in run.steps(until=4):
                run.commit(step, params)
        seen = [found.step for found in holdfast.checkpoints(tmp_path)]
    finally:
        fs.set_fault_hook(None)
    assert seen == [4, 3]
