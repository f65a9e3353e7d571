"""The session: what a training script uses, from joining the other processes to leaving them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from holdfast.distributed.world import World
from holdfast.policies.checkpoint_health import Predicate
from holdfast.policies.field_checks import require_positive
from holdfast.policies.keep_rules import KeepRule
from holdfast.policies.save_rules import SavePolicy
from holdfast.state import data_position
from holdfast.state import metadata as notes
from holdfast.store.store_settings import require_writer, require_yes_or_no
from holdfast.training.config import SessionArguments, resolve_config
from holdfast.training.exit_codes import keep_exit_codes
from holdfast.training.logs import show_in_a_pod
from holdfast.training.loop import Given, TrainingLoop
from holdfast.training.runtime import Runtime, TrainerState, assemble
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
        self._entered_loop: TrainingLoop | None = None
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
        config = runtime.config
        request = restore_request(config.pin, new_leaves, dropped_leaves, step=step, best=best, fresh=config.fresh)
        trainer.accountant.enter_phase(Bucket.RESTORE)
        initial = Initial(init_state, shardings)
        state, restored = begin_or_continue(runtime.store, runtime.beginning, initial, data, request)
        reached = 0
        if restored is None:
            trainer.status.restored(None, ())
            log.info("attempt %d begins from the initial state", runtime.attempt)
        else:
            ref, reached = restored.ref, restored.ref.step
            self._metadata = notes.read(restored.folder, restored.manifest)
            trainer.status.restored(ref, restored.rejected)
            log.info("attempt %d continues after attempt %d, step %d", runtime.attempt, ref.attempt, reached)
        self._loop.begin(reached, data)
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
            RestoreForgotten: the run has checkpoints, and ``restore`` was not called.
            Superseded, SaveError: no later save can be expected to succeed; see ``commit``.
            PeerLost: another rank is gone.
        """
        return self._loop.steps(until, run_ahead)

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
                A NumPy or JAX bool counts as its value.
            keep: save now, and never delete this checkpoint. As ``save``.

        Returns:
            The handle of the save that this call began, with its result, error and timings; None if none was due.

        Raises:
            RestoreForgotten: the run has checkpoints, and ``restore`` was not called.
            ConfigurationError: ``data`` was given to ``restore`` and not here, or the reverse; or the first committed
                state differs from the one that ``restore`` was asked for, so that no restart could restore it.
            TypeError, ValueError: an argument is wrong; the message names it.
            Superseded: a newer attempt has begun, so a save was refused; every later one would be.
            SaveError: three saves in a row have failed; or with ``on_save_error="raise"``: the previous save failed.
                In the second case the save of this call has begun.
        """
        return self._loop.commit(step, state, Given(data, metrics, metadata, save, keep))

    def request_save(self, within_seconds: float = REQUEST_SECONDS) -> Future[CheckpointRef]:
        """Ask all ranks for a save, from one rank or many, at any moment, from any thread; returns at once.

        The ranks agree on the step, one or two from now. If a checkpoint of the last completed step exists already,
        that checkpoint is the answer. Do not wait for the future inside the loop: the save needs the loop to go on.

        Args:
            within_seconds: the save is not begun if it is not expected to be committed within this time.

        Returns:
            A future of the committed checkpoint. It raises RequestFailed if the save cannot be committed within
            ``within_seconds``, if it fails, and if training ends first. After the end of training it fails at once.

        Raises:
            RestoreForgotten: the run has checkpoints, and ``restore`` was not called.
        """
        require_positive("within_seconds", within_seconds)
        self._runtime.beginning.require()
        return self._runtime.requests.request_of_program(within_seconds)

    def __enter__(self) -> Self:
        """Join the world and claim the run."""
        keep_exit_codes()
        try:
            self._open()
        except BaseException as error:
            end_by(error, self._trainer, self._opened)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save the last commit if it is not saved, wait for that, report to the agent, leave.

        Ends the process if a stop was requested. An error that ends the block is not replaced, and no save is begun then.

        Raises:
            SaveError: the last save failed.
            StepsNotCommitted: steps ran and none was committed, or not the last one.
            StepsNotSaved: the last commit is not saved and cannot be saved exactly any more.
            RanksDisagree: the ranks left the loop after different commits.
        """
        if error is not None:
            end_by(error, self._trainer, self._opened)
            return
        runtime = self._runtime
        stopped = self._loop.was_stopped
        try:
            end_together(runtime, self._loop)
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

    @property
    def _loop(self) -> TrainingLoop:
        if self._entered_loop is None:
            raise RuntimeError("the session is not open; use it as `with holdfast.session() as run:`")
        return self._entered_loop

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
        self._entered_loop = TrainingLoop(self._opened, raise_save_errors=self._arguments.on_save_error == "raise")
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
    fresh: bool = False,
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
            raises the error, after it has begun. Three failed saves in a row end training at the next commit in both
            cases, and so does a save that was refused because a newer attempt has begun.
        writer: who writes the arrays. "direct": Holdfast, past the page cache, and Orbax where that cannot store a
            leaf. "orbax": always Orbax. The result is a plain Orbax checkpoint either way.
        check_saves: read the arrays back before a save counts, and compare every bit with memory. A save that differs
            fails and names the leaf. This costs one read of the checkpoint, in the background.
        fresh: start over from the initial state although the run has checkpoints. Every restart of the program starts
            over too, so another ``run`` name is usually better. The last two checkpoints before each new start stay.

    Raises:
        ValueError: an argument is wrong; the message names it, what was found and what is allowed.
    """
    if on_save_error not in {"continue", "raise"}:
        raise ValueError(f"on_save_error: found {on_save_error!r}, allowed: 'continue' | 'raise'")
    require_positive("timeout_seconds", timeout_seconds)
    require_writer(writer)
    require_yes_or_no("check_saves", check_saves)
    require_yes_or_no("fresh", fresh)
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
            fresh=fresh,
        )
    )
