"""The session: what a training script uses, from joining the other processes to leaving them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from holdfast.distributed.world import World
from holdfast.policies.checkpoint_health import Predicate, with_verdict
from holdfast.policies.field_checks import require_positive
from holdfast.policies.keep_rules import KeepRule
from holdfast.policies.save_rules import SavePolicy
from holdfast.state import data_position
from holdfast.state import metadata as notes
from holdfast.store.store_settings import require_writer, require_yes_or_no
from holdfast.training.config import SessionArguments, resolve_config
from holdfast.training.logs import show_in_a_pod
from holdfast.training.progress import results_of
from holdfast.training.runtime import Runtime, TrainerState, assemble
from holdfast.training.saves import raise_failure
from holdfast.training.shutdown import end_by, end_together, follow
from holdfast_contract.exits import ExitCode
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.reasons import Bucket

if TYPE_CHECKING:
    from holdfast.store import SaveHandle
    from holdfast.store.read.candidates import Metric

DataT = TypeVar("DataT")

RUN_AHEAD_STEPS: Final = 2
"""How many steps may be dispatched without a result: before step k begins, the result of step k - 2 exists."""

REQUEST_SECONDS: Final = 600.0
"""Default of ``request_save``: how long the save may take."""

TIDY_SECONDS: Final = 30.0
"""How long the end of training waits for checkpoints to be deleted."""

log = logging.getLogger("holdfast")


class Session:
    """One process's part in one attempt of a run. Made by ``session``; use it in a ``with`` block on the main thread."""

    def __init__(self, arguments: SessionArguments) -> None:
        self._arguments = arguments
        self._trainer = TrainerState()
        self._opened: Runtime | None = None
        self._until: int | None = None
        self._metadata: dict[str, Any] = {}

    @property
    def attempt(self) -> int:
        """The number of this attempt of the run, from 1."""
        return self._runtime.attempt

    @property
    def process_index(self) -> int:
        """This rank, from 0."""
        return self._runtime.coordination.process_index

    @property
    def newest(self) -> CheckpointRef | None:
        """The newest checkpoint that was restored or committed."""
        return self._trainer.status.newest

    @property
    def metadata(self) -> dict[str, Any]:
        """The ``metadata=`` of the checkpoint that was restored; empty if it has none, or if nothing was restored."""
        return dict(self._metadata)

    @property
    def save_error(self) -> str:
        """Why the last save failed; "" if it did not."""
        return self._trainer.status.update().storage_error

    @overload
    def restore(
        self,
        init_state: Any,
        *,
        shardings: Any = None,
        new_leaves: Sequence[str] = (),
        dropped_leaves: Sequence[str] = (),
        step: int | None = None,
        best: Metric | None = None,
    ) -> tuple[Any, None]: ...
    @overload
    def restore(
        self,
        init_state: Any,
        data: DataT,
        *,
        shardings: Any = None,
        new_leaves: Sequence[str] = (),
        dropped_leaves: Sequence[str] = (),
        step: int | None = None,
        best: Metric | None = None,
    ) -> tuple[Any, DataT]: ...
    def restore(  # noqa: PLR0913  one call with a name for every choice
        self,
        init_state: Any,
        data: Any = None,
        *,
        shardings: Any = None,
        new_leaves: Sequence[str] = (),
        dropped_leaves: Sequence[str] = (),
        step: int | None = None,
        best: Metric | None = None,
    ) -> tuple[Any, Any]:
        """Restore the newest valid checkpoint, or begin with ``init_state`` if there is none.

        Args:
            init_state: the initial state, or a function without arguments that builds it. Without a checkpoint it is
                returned unchanged. A function is only compiled, not run, while a checkpoint is restored (see
                ``Initial``). NNX objects are filled in place.
            data: this process's iterator, with get_state() and set_state(state). It is set to its position at the
                restored step, in place.
            shardings: shardings of the state where ``init_state`` does not have them: a tree of the same structure, or
                one sharding for all leaves.
            new_leaves: paths of leaves that the checkpoint may lack, such as ``params.head``; ``*`` matches any
                characters. They keep the values of ``init_state``.
            dropped_leaves: paths of leaves that the checkpoint may have and the state lacks.
            step: restore this step and no other, from the newest attempt that has it. Every restart of the program
                restores it again. To branch off for good, ``holdfast.load`` it as the initial state of another run.
            best: ``("loss", "min")``: restore the best checkpoint by a metric. Every restart does so again.

        Returns:
            The state, with the structure, shapes, dtypes and shardings of ``init_state``; and ``data``.

        Raises:
            NoValidCheckpoint: checkpoints exist and none is valid.
            StructureMismatch: the structure of the state differs from the checkpoint's.
            RestoreError: the data position belongs to another number of processes, and ``data`` has no ``reposition``.
        """
        from holdfast.state.initial import Initial
        from holdfast.training.restoring import begin_or_continue, restore_request

        data_position.require_iterator(data)
        runtime, trainer = self._runtime, self._trainer
        request = restore_request(runtime.config.pin, new_leaves, dropped_leaves, step=step, best=best)
        trainer.accountant.enter_phase(Bucket.RESTORE)
        initial = Initial(init_state, shardings)
        state, restored = begin_or_continue(runtime.store, initial, data, request, runtime.coordination.process_count)
        reached = 0
        if restored is None:
            trainer.status.restored(None, ())
            log.info("attempt %d begins from the initial state", runtime.attempt)
        else:
            ref, reached = restored.ref, restored.ref.step
            self._metadata = notes.read(restored.folder, restored.manifest)
            trainer.status.restored(ref, restored.rejected)
            log.info("attempt %d continues after attempt %d, step %d", runtime.attempt, ref.attempt, reached)
        trainer.steps.start_at(reached)
        runtime.agreement.gate.start_at(reached)
        runtime.saves.start_clock()
        trainer.accountant.enter_phase(Bucket.COMPILE)
        return state, data

    def steps(self, until: int | None, *, run_ahead: int = RUN_AHEAD_STEPS) -> Iterator[int]:
        """Yield the numbers of the steps to train, from the one after the restored step to ``until``.

        Before step k it waits for the result of step k - ``run_ahead``. It ends early once all ranks have agreed to
        stop; leaving the ``with`` block then ends the process.

        Args:
            until: the last step; None: no end.
            run_ahead: how many steps may be dispatched without a result, at least 1.

        Raises:
            PeerLost: another rank is gone.
        """
        if run_ahead < 1:
            raise ValueError(f"run_ahead: found {run_ahead}, allowed: 1 or more")
        gate, trainer = self._runtime.agreement.gate, self._trainer
        self._until = trainer.steps.total = until
        while until is None or gate.entered < until:
            step = gate.entered + 1
            trainer.steps.wait(step - run_ahead)
            with trainer.accountant.within(Bucket.SAVE_STALL):
                entered = gate.enter(step)
            if not entered:
                log.warning("training stops after step %d, as requested", gate.entered)
                return
            yield step

    def commit(  # noqa: PLR0913  one call with a name for every choice
        self,
        step: int,
        state: Any,
        *,
        data: Any = None,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        save: bool = False,
        keep: bool = False,
    ) -> SaveHandle | None:
        """Record the state after ``step``. If a save is due, copy the state and write it in the background.

        Args:
            step: the number that ``steps`` yielded.
            state: the state after the step, any pytree.
            data: this process's iterator, the same object as given to ``restore``.
            metrics: numbers or 0-d arrays by name. They are reported, and stored in the checkpoint to choose the best.
            metadata: further facts to store in the checkpoint, such as the configuration of the run: a dictionary that
                JSON can represent. Process 0's value is stored. ``metadata`` reads it after a restore.
            save: save now, whatever the policy says, before an evaluation for example. Every rank must pass the same.
            keep: save now, and never delete this checkpoint. Every rank must pass the same.

        Returns:
            The handle of the save that this call began, with its result, error and timings; None if none was due.

        Raises:
            SaveError: with ``on_save_error="raise"``: the previous save failed. The save of this call has begun.
        """
        from holdfast.state import nnx
        from holdfast.store import CheckpointExtras

        runtime = self._runtime
        entered = runtime.agreement.gate.entered
        if step != entered:
            raise ValueError(f"step: found {step}, allowed: {entered}, the step that the loop is in")
        metrics = dict(metrics or {})
        self._trainer.steps.add(step, results_of(state, metrics), metrics)
        noted = notes.to_bytes(metadata)
        agreed = runtime.agreement.gate.take_due(step)
        context = runtime.saves.decision_context(step)
        due = save or keep or step == self._until or runtime.schedule.due(context)
        if step == runtime.saves.last_step:
            return None
        if due or agreed:
            data_position.require_iterator(data)
            stored_metrics = with_verdict(metrics, runtime.config.healthy)
            request = CheckpointExtras(data_position.capture(data), stored_metrics, pinned=keep, metadata=noted)
            before = runtime.saves.last
            handle = runtime.saves.begin(step, nnx.arrays_of(state), request)
            runtime.schedule.began()
            if self._arguments.on_save_error == "raise":
                raise_failure(before)  # known to all ranks alike, since this save waited for it
            return handle
        if runtime.saves.in_flight is None and (own := runtime.schedule.ask(context)) is not None:
            runtime.requests.request(own)
        return None

    def request_save(self, within_seconds: float = REQUEST_SECONDS) -> Future[CheckpointRef]:
        """Ask all ranks for a save, from one rank or many, at any moment, from any thread; returns at once.

        The ranks agree on the step, one or two from now. If a checkpoint of the last completed step exists already,
        that checkpoint is the answer. Do not wait for the future inside the loop: the save needs the loop to go on.

        Args:
            within_seconds: the save is not begun if it is not expected to be committed within this time.

        Returns:
            A future of the committed checkpoint. It raises RequestFailed if the save cannot be committed within
            ``within_seconds``, if it fails, and if training ends first. After the end of training it fails at once.
        """
        require_positive("within_seconds", within_seconds)
        return self._runtime.requests.request_of_program(within_seconds)

    def __enter__(self) -> Self:
        """Join the world and claim the run."""
        try:
            self._open()
        except BaseException as error:
            end_by(error, self._trainer, self._opened)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the save in flight, report to the agent, leave. Ends the process if a stop was requested."""
        if error is not None:
            end_by(error, self._trainer, self._opened)
            return
        runtime = self._runtime
        gate = runtime.agreement.gate
        finished = self._until is not None and gate.entered >= self._until
        stopped = gate.stop_after is not None and not finished
        try:
            end_together(runtime, stopped=stopped)
        except BaseException as failure:
            end_by(failure, self._trainer, runtime)
            raise
        if not stopped:
            runtime.store.tidy(TIDY_SECONDS)
        runtime.close()
        if stopped:
            raise SystemExit(int(ExitCode.SAVED if runtime.requests.stopped_saved else ExitCode.NOT_SAVED))

    @property
    def _runtime(self) -> Runtime:
        if self._opened is None:
            raise RuntimeError("the session is not open; use it as `with holdfast.session() as run:`")
        return self._opened

    def _open(self) -> None:
        from holdfast.distributed import join as world

        config = resolve_config(self._arguments, os.environ)
        if config.agent_socket is not None:
            show_in_a_pod()
        if config.compile_cache is not None:
            world.use_compile_cache(config.compile_cache)
        self._trainer.crowded |= config.world is not None and config.world.process_count > 1
        coordination = world.join(config.world)
        self._trainer.crowded |= coordination.process_count > 1
        self._opened = assemble(config, coordination, self._trainer, abandoned=lambda e: follow(e, self._trainer))
        self._opened.start()


def session(  # noqa: PLR0913  one call with a name for every choice, none of them needed in a pod
    path: str | os.PathLike[str] | None = None,
    *,
    run: str | None = None,
    every: SavePolicy | None = None,
    keep: KeepRule | None = None,
    world: World | None = None,
    healthy: Predicate | None = None,
    timeout_seconds: float = 1000.0,
    on_save_error: Literal["continue", "raise"] = "continue",
    writer: Literal["direct", "orbax"] = "direct",
    check_saves: bool = False,
) -> Session:
    """Open a training session; use it in a ``with`` block.

    In a pod of a TrainingJob no argument is needed: the job's spec gives them. An argument that is given wins.

    Args:
        path: folder for checkpoints, on storage that all processes share; created if it is missing.
        run: name of the run below ``path``. A session of the same name continues the run.
        every: when to save; by default every 600 seconds. The last step is always saved.
        keep: which checkpoints to keep; by default the newest 3.
        world: the processes that train together. Leave it out for one process, and if the program has called
            ``jax.distributed.initialize`` itself.
        healthy: a function of a step's metrics that says whether its state is healthy, such as
            ``holdfast.finite("loss")``. The answer is stored; an unhealthy checkpoint is never among the best.
        timeout_seconds: how long a save may take, on any process, before it counts as failed.
        on_save_error: what follows a failed save. "continue": the error is logged, reported to the agent, and shown by
            ``save_error`` and the handle; training goes on, and only the last save raises. "raise": the next save
            raises the error, after it has begun.
        writer: who writes the arrays. "direct": Holdfast, past the page cache, and Orbax where that cannot store a
            leaf. "orbax": always Orbax. The result is a plain Orbax checkpoint either way.
        check_saves: read the arrays back before a save counts, and compare every bit with memory. A save that differs
            fails and names the leaf. This costs one read of the checkpoint, in the background.

    Raises:
        ValueError: an argument is wrong; the message names it, what was found and what is allowed.
    """
    if on_save_error not in {"continue", "raise"}:
        raise ValueError(f"on_save_error: found {on_save_error!r}, allowed: 'continue' | 'raise'")
    require_positive("timeout_seconds", timeout_seconds)
    require_writer(writer)
    require_yes_or_no("check_saves", check_saves)
    return Session(
        SessionArguments(
            path=path,
            run=run,
            every=every,
            keep=keep,
            world=world,
            healthy=healthy,
            timeout_seconds=timeout_seconds,
            on_save_error=on_save_error,
            writer=writer,
            check_saves=check_saves,
        )
    )
