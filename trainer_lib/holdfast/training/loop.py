"""The training loop of one rank: its steps, its commits, and the end of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigurationError
from holdfast.policies.checkpoint_health import with_verdict
from holdfast.state import data_position
from holdfast.state import metadata as notes
from holdfast.training.arguments import as_flag, as_step
from holdfast.training.leaving import Left, Verdict, exchange, verdict
from holdfast.training.progress import results_of
from holdfast.training.saves import raise_failure
from holdfast_contract.reasons import Bucket

if TYPE_CHECKING:
    from holdfast.store import SaveHandle
    from holdfast.training.last_commit import Commit
    from holdfast.training.runtime import Runtime

log = logging.getLogger("holdfast")


@dataclass(frozen=True)
class Given:
    """What the program gave to ``Session.commit`` beside the step and the state."""

    data: Any = None
    metrics: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    save: Any = False
    keep: Any = False


class TrainingLoop:
    """See ``Session.steps`` and ``Session.commit``.

    Args:
        runtime: the open session's parts.
        raise_save_errors: whether the save after a failed one raises that one's error.
    """

    def __init__(self, runtime: Runtime, *, raise_save_errors: bool) -> None:
        from holdfast.training.last_commit import PositionCapture

        self._runtime, self._raise_save_errors = runtime, raise_save_errors
        self._gate = runtime.agreement.gate
        self._until: int | None = None
        self._began = 0
        self._with_data: tuple[bool, str] | None = None
        self._committed: int | None = None
        self._unsaved: Commit | None = None
        self._capture = PositionCapture()
        self._holds_objects: bool | None = None  # NNX objects: known from the first commit on

    @property
    def has_finished(self) -> bool:
        """Whether ``until`` was reached."""
        return self._until is not None and self._gate.entered >= self._until

    @property
    def was_stopped(self) -> bool:
        """Whether the ranks have agreed to stop before ``until``."""
        return self._gate.stop_after is not None and not self.has_finished

    @property
    def last_step(self) -> int:
        """The last step that a checkpoint can hold."""
        return self._gate.entered if self._committed is None or self.was_stopped else self._committed

    def begin(self, reached: int, data: Any) -> None:
        """Training continues after the step ``reached``; ``data`` is what ``restore`` was given."""
        self._began = reached
        self._with_data = (data is not None, "`restore`")
        self._runtime.trainer.steps.start_at(reached)
        self._gate.start_at(reached)
        self._runtime.saves.start_clock()

    def steps(self, until: int | None, run_ahead: int) -> Iterator[int]:
        """See ``Session.steps``."""
        trainer = self._runtime.trainer
        until = None if until is None else as_step("until", until)
        if as_step("run_ahead", run_ahead) < 1:
            raise ValueError(f"run_ahead: found {run_ahead}, allowed: 1 or more")
        self._runtime.beginning.require()
        self._until = trainer.steps.total = until
        while until is None or self._gate.entered < until:
            self._runtime.saves.require_hope()
            step = self._gate.entered + 1
            trainer.steps.wait(step - run_ahead)
            with trainer.accountant.within(Bucket.SAVE_STALL):
                entered = self._gate.enter(step)
            if not entered:
                log.warning("training stops after step %d, as requested", self._gate.entered)
                return
            yield step

    def commit(self, step: int, state: Any, given: Given) -> SaveHandle | None:
        """See ``Session.commit``."""
        runtime = self._runtime
        runtime.beginning.require()
        runtime.saves.require_hope()
        step, keep = as_step("step", step), as_flag("keep", given.keep)
        save = as_flag("save", given.save) or keep
        if step != (entered := self._gate.entered):
            raise ValueError(f"step: found {step}, allowed: {entered}, the step that the loop is in")
        commit = self._held(step, state, given)
        runtime.trainer.steps.add(step, results_of(state, commit.metrics), dict(given.metrics or {}))
        agreed = self._gate.take_due(step)
        context = runtime.saves.decision_context(step)
        due = save or step == self._until or runtime.schedule.due(context)
        if step == runtime.saves.last_step:
            if keep:
                raise ValueError(
                    f"keep: found True for step {step}, which is saved already; allowed: with its first commit"
                )
            return None
        self._committed, self._unsaved = step, commit
        if due or agreed:
            return self._save(commit, state, keep=keep)
        if runtime.saves.in_flight is None and (own := runtime.schedule.ask(context)) is not None:
            runtime.requests.request(own)
        return None

    def leave(self) -> Verdict:
        """The loop is over: begin to save the last commit if it is not saved yet.

        Returns what every rank does, with the error to raise once the save is committed.

        Raises:
            PeerLost: a rank did not leave the loop in time.
        """
        runtime = self._runtime
        with runtime.trainer.accountant.within(Bucket.SAVE_STALL):
            runtime.trainer.steps.wait(self._gate.entered)
            left = exchange(runtime.coordination, self._left())
            runtime.saves.wait()
            alone = runtime.coordination.process_count == 1
            outcome = verdict(left, runtime.trainer.status.newest, alone=alone)
        last, self._unsaved = self._unsaved, None
        if outcome.save and last is not None:
            log.info("the loop was left after step %d, which is saved now", last.step)
            self._save(last, last.state.tree(), keep=False)
        return outcome

    def _held(self, step: int, state: Any, given: Given) -> Commit:
        from holdfast.state import nnx
        from holdfast.training.last_commit import Commit, HeldState

        data = given.data
        data_position.require_iterator(data)
        self._require_data_as_before(data)
        metrics = with_verdict(given.metrics or {}, self._runtime.config.healthy)
        noted = notes.to_bytes(given.metadata)
        if self._holds_objects is None:
            self._holds_objects = nnx.holds_objects(state)
            # The first state before training goes on; later ones when they are saved.
            self._runtime.beginning.rehearse(nnx.arrays_of(state))
        held = HeldState(state, holds_objects=self._holds_objects)
        return Commit(step, held, data, self._capture.at_commit(data), metrics, noted)

    def _save(self, commit: Commit, state: Any, *, keep: bool) -> SaveHandle:
        from holdfast.state import nnx
        from holdfast.store import CheckpointExtras

        runtime, before = self._runtime, self._runtime.saves.last
        request = CheckpointExtras(commit.present_position(), commit.metrics, pinned=keep, metadata=commit.metadata)
        arrays = nnx.arrays_of(state)
        runtime.beginning.rehearse(arrays)
        handle = runtime.saves.begin(commit.step, arrays, request)
        runtime.schedule.began()
        self._unsaved = None
        if self._raise_save_errors:
            raise_failure(before)  # known to all ranks alike, since this save waited for it
        return handle

    def _require_data_as_before(self, data: Any) -> None:
        if self._with_data is None:
            self._with_data = (data is not None, "the first `commit`")
        expected, where = self._with_data
        if expected and data is None:
            raise ConfigurationError(
                f"data: found None, allowed: the iterator that {where} was given; pass `data=` to every commit, or no "
                "checkpoint of this run can be restored"
            )
        if data is not None and not expected:
            raise ConfigurationError(
                f"data: found {type(data).__name__}, allowed: None, as {where} was called without data; pass the "
                "iterator to both, or to neither"
            )

    def _left(self) -> Left:
        entered, last = self._gate.entered, self._unsaved
        return Left(
            began=self._began,
            entered=entered,
            committed=self._committed,
            saved=max(self._began, self._runtime.saves.last_step),
            finished=self.has_finished,
            stopped=self.was_stopped,
            inexact="" if last is None else last.inexact(entered),
        )
