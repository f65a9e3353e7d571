"""The session: what a training script holds from joining the world to leaving it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from holdfast.distributed.world import World
from holdfast.policies.health import Predicate, with_verdict
from holdfast.policies.keeping import KeepRule, require_positive
from holdfast.policies.saving import SavePolicy
from holdfast.state import data_position
from holdfast.state import metadata as notes
from holdfast.store.store_settings import require_writer, require_yes_or_no
from holdfast.training.config import Arguments, look_around
from holdfast.training.logs import show_in_a_pod
from holdfast.training.progress import results_of
from holdfast.training.runtime import Journal, Parts, assemble
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
"""How many steps may be on their way: before step k begins, the result of step k - 2 exists."""

REQUEST_SECONDS: Final = 600.0
"""How long a save that the program asks for may take, unless it says."""

TIDY_SECONDS: Final = 30.0
"""How long the end of training waits for checkpoints to be deleted."""

log = logging.getLogger("holdfast")


class Session:
    """One process's part in one attempt of a run. Made by ``session``; use it in a ``with`` block on the main thread."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        self._journal = Journal()
        self._opened: Parts | None = None
        self._until: int | None = None
        self._metadata: dict[str, Any] = {}

    @property
    def attempt(self) -> int:
        """The number of this incarnation of the run, from 1."""
        return self._parts.attempt

    @property
    def process_index(self) -> int:
        """This rank, from 0."""
        return self._parts.coordination.process_index

    @property
    def newest(self) -> CheckpointRef | None:
        """The newest checkpoint that was restored or committed."""
        return self._journal.status.newest

    @property
    def metadata(self) -> dict[str, Any]:
        """What the program noted in the checkpoint that was restored; empty if nothing, or if there was none."""
        return dict(self._metadata)

    @property
    def save_error(self) -> str:
        """Why the last save failed; "" if it did not."""
        return self._journal.status.update().storage_error

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
        """The newest valid checkpoint in place of ``init_state``, and ``data`` put where it was then.

        Args:
            init_state: builds the initial state; or that state. Returned as it is if there is no checkpoint. See
                ``Initial`` for what is run and what is only compiled. NNX objects that it is are changed in place.
            data: this process's iterator, with get_state() and set_state(state); changed in place.
            shardings: of the state, where ``init_state`` itself does not say: a tree like it, or one for all leaves.
            new_leaves: leaves that the checkpoint need not have, by their path, ``params.head``, with ``*`` for any
                characters; they begin as ``init_state`` builds them.
            dropped_leaves: leaves of the checkpoint that the state need not have.
            step: go on from this step and no other, from the newest attempt that has it. Every restart of the program
                goes back to it again: to branch off for good, ``holdfast.load`` it as the initial state of another run.
            best: ``("loss", "min")``: go on from the best by a metric, with the same warning.

        Raises:
            NoValidCheckpoint: candidates exist, none is valid. StructureMismatch: the state has changed since.
            RestoreError: the data position is of another number of processes, and ``data`` has no ``reposition``.
        """
        from holdfast.state.initial import Initial
        from holdfast.training.restoring import begin_or_continue, wanted

        data_position.require_iterator(data)
        parts, journal = self._parts, self._journal
        wish = wanted(parts.where.pin, new_leaves, dropped_leaves, step=step, best=best)
        journal.accountant.enter_phase(Bucket.RESTORE)
        initial = Initial(init_state, shardings)
        state, restored = begin_or_continue(parts.store, initial, data, wish, parts.coordination.process_count)
        reached = 0
        if restored is None:
            journal.status.restored(None, ())
            log.info("attempt %d begins from the initial state", parts.attempt)
        else:
            ref, reached = restored.ref, restored.ref.step
            self._metadata = notes.read(restored.folder, restored.manifest)
            journal.status.restored(ref, restored.rejected)
            log.info("attempt %d continues after attempt %d, step %d", parts.attempt, ref.attempt, reached)
        journal.steps.start_at(reached)
        parts.agreement.gate.start_at(reached)
        parts.saves.start_clock()
        journal.accountant.enter_phase(Bucket.COMPILE)
        return state, data

    def steps(self, until: int | None, *, run_ahead: int = RUN_AHEAD_STEPS) -> Iterator[int]:
        """The numbers of the steps to do, from the one after the restored step to ``until``; endless if None.

        Before step k it waits for the result of step k - ``run_ahead``. Ends early once all ranks have agreed to stop;
        leaving the ``with`` block then ends the process.

        Raises:
            PeerLost: another rank is gone.
        """
        if run_ahead < 1:
            raise ValueError(f"run_ahead: found {run_ahead}, allowed: 1 or more")
        gate, journal = self._parts.agreement.gate, self._journal
        self._until = journal.steps.total = until
        while until is None or gate.entered < until:
            step = gate.entered + 1
            journal.steps.wait(step - run_ahead)
            with journal.accountant.within(Bucket.SAVE_STALL):
                entered = gate.enter(step)
            if not entered:
                log.warning("training stops after step %d on request", gate.entered)
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
        """Say that ``step`` has led to ``state``; it is saved if that is due, in the background.

        Returns the handle of the save that this call began, with its result, error and timings; None if none was due.

        Args:
            step: the number that ``steps`` gave.
            data: this process's iterator, as given to ``restore``.
            metrics: numbers, also as arrays; reported, and kept in the checkpoint for choosing the best.
            metadata: what else to note in the checkpoint if it is saved: a dictionary that JSON keeps, the configuration
                of the run, say. Process 0's counts. See ``metadata`` for reading it.
            save: save now, whatever the policy says; every rank must say the same. Before an evaluation, say.
            keep: save now, and never delete this checkpoint.

        Raises:
            SaveError: with ``on_save_error="raise"``: the save before the one that this call began has failed.
        """
        from holdfast.state import nnx
        from holdfast.store import CheckpointExtras

        parts = self._parts
        entered = parts.agreement.gate.entered
        if step != entered:
            raise ValueError(f"step: found {step}, allowed: {entered}, the step that the loop is in")
        metrics = dict(metrics or {})
        self._journal.steps.add(step, results_of(state, metrics), metrics)
        noted = notes.to_bytes(metadata)
        asks = parts.agreement.gate.take(step)
        moment = parts.saves.moment(step)
        wanted = save or keep or step == self._until or parts.schedule.due(moment)
        if step == parts.saves.last_step:
            for ask in asks:
                parts.saves.follow(step, ask)
        elif wanted or asks:
            data_position.require_iterator(data)
            told = with_verdict(metrics, parts.where.healthy)
            request = CheckpointExtras(data_position.capture(data), told, pinned=keep, metadata=noted)
            before = parts.saves.last
            handle = parts.saves.begin(step, nnx.arrays_of(state), request, asks)
            parts.schedule.began()
            if self._arguments.on_save_error == "raise":
                raise_failure(before)  # known to all ranks alike, since this save waited for it
            return handle
        elif parts.saves.in_flight is None and (own := parts.schedule.ask(moment)) is not None:
            parts.agreement.ask(own)
        return None

    def request_save(self, within_seconds: float = REQUEST_SECONDS) -> Future[CheckpointRef]:
        """Ask all ranks for a save, from one rank or many, at any moment, from any thread; returns at once.

        The ranks agree on the step, one or two from now. If a checkpoint of the last completed step is there already,
        that is the answer. Do not wait for the answer in the loop, which has to go on for it.

        Returns:
            A future of the committed checkpoint, or of RequestFailed: it could not be committed within
            ``within_seconds``, failed, or training ended before.
        """
        require_positive("within_seconds", within_seconds)
        return self._parts.desk.request_of_program(within_seconds)

    def __enter__(self) -> Self:
        """Join the world and claim the run."""
        try:
            self._open()
        except BaseException as error:
            end_by(error, self._journal, self._opened)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what is being saved, tell the agent, leave. Ends the process if training was asked to stop."""
        if error is not None:
            end_by(error, self._journal, self._opened)
            return
        parts = self._parts
        gate = parts.agreement.gate
        finished = self._until is not None and gate.entered >= self._until
        stopped = gate.stop_after is not None and not finished
        try:
            end_together(parts, stopped=stopped)
        except BaseException as failure:
            end_by(failure, self._journal, parts)
            raise
        if not stopped:
            parts.store.tidy(TIDY_SECONDS)
        parts.close()
        if stopped:
            raise SystemExit(int(ExitCode.SAVED if parts.desk.stopped_saved else ExitCode.NOT_SAVED))

    @property
    def _parts(self) -> Parts:
        if self._opened is None:
            raise RuntimeError("the session is not open; use it as `with holdfast.session() as run:`")
        return self._opened

    def _open(self) -> None:
        from holdfast.distributed import join as world

        where = look_around(self._arguments, os.environ)
        if where.agent_socket is not None:
            show_in_a_pod()
        if where.compile_cache is not None:
            world.use_compile_cache(where.compile_cache)
        self._journal.crowded |= where.world is not None and where.world.process_count > 1
        coordination = world.join(where.world)
        self._journal.crowded |= coordination.process_count > 1
        self._opened = assemble(where, coordination, self._journal, abandoned=lambda e: follow(e, self._journal))
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
    """A training session, to be used in a ``with`` block.

    In a pod of a TrainingJob everything is known and no argument is needed; an argument given there wins.

    Args:
        path: folder for checkpoints, the same shared storage for every process; made if it is missing.
        run: name of the run below ``path``; opening it again continues it.
        every: when to save; every 600 seconds by default, and always at the end.
        keep: what to keep; the newest 3 by default.
        world: the processes that train together; leave it out if there is one, or if the program has called
            ``jax.distributed.initialize`` itself.
        healthy: what says of the metrics of a step whether its state is worth anything, ``holdfast.finite("loss")``
            say. The answer is kept in the checkpoint; one that is not healthy is never among the best.
        timeout_seconds: how long a save may take before it counts as failed, on all processes alike.
        on_save_error: what follows when a save fails. "continue": it is logged, told to the agent, in ``save_error``
            and in the handle, and training goes on; only the last save raises. "raise": the next save raises it, after
            it has begun its own.
        writer: who writes arrays. "direct": past the page cache, and Orbax what that cannot hold; "orbax": Orbax always.
            What is stored is a plain Orbax checkpoint either way.
        check_saves: read the arrays back from storage before a save counts, and compare every bit with memory; a save
            that differs fails and names the leaf. It costs reading what was written, in the background.
    """
    if on_save_error not in {"continue", "raise"}:
        raise ValueError(f"on_save_error: found {on_save_error!r}, allowed: 'continue' | 'raise'")
    require_positive("timeout_seconds", timeout_seconds)
    require_writer(writer)
    require_yes_or_no("check_saves", check_saves)
    return Session(
        Arguments(path, run, every, keep, world, healthy, timeout_seconds, on_save_error, writer, check_saves)
    )
