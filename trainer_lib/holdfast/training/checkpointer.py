"""Checkpoints for a program with a loop of its own: an object that saves on call and restores on call."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from holdfast.distributed import join as world
from holdfast.policies.checkpoint_health import with_verdict
from holdfast.state import data_position, nnx
from holdfast.state import metadata as notes
from holdfast.store.store_settings import require_writer, require_yes_or_no
from holdfast.training.arguments import as_flag, as_step
from holdfast.training.beginning import FORGOTTEN_IN_CHECKPOINTER, Beginning
from holdfast.training.config import SessionArguments, resolve_config
from holdfast.training.exit_codes import keep_exit_codes
from holdfast.training.exit_guard import ExitGuard
from holdfast.training.runtime import open_store

if TYPE_CHECKING:
    from holdfast.policies.keep_rules import KeepRule
    from holdfast.store import SaveHandle
    from holdfast_contract.manifest import CheckpointRef

PyTree = Any
_MODEL, _OPTIMIZER = "model", "optimizer"
_AT_EXIT_MARGIN_SECONDS: Final = 60.0

log = logging.getLogger("holdfast")


class Checkpointer:
    """Saves and restores a model and its optimizer below ``path``; every process of the program makes one.

    ::

        with holdfast.Checkpointer("/checkpoints/a", model, optimizer, keep=holdfast.keep(latest=3)) as checkpointer:
            for step in range(checkpointer.restore() + 1, 1001):
                loss = train_step(model, optimizer, batch)
                if step % 100 == 0:
                    checkpointer.save(step, {"loss": loss})

    NNX objects are read and filled in place. Other pytrees do not change in place: ``restore`` leaves the restored ones
    in ``model`` and ``optimizer``, and ``save`` is given the present ones.

    A save that is in flight is finished when the ``with`` block is left, by whatever way, and when the program ends
    without one: at its last line, by an exception, by ``sys.exit``, or by SIGTERM, on which it exits with 143.

    Raises:
        StorageUnusable, Superseded, PeerLost: see ``session``.
    """

    def __init__(  # noqa: PLR0913  what a training has, and choices with a name each
        self,
        path: str | os.PathLike[str],
        model: PyTree,
        optimizer: PyTree = None,
        *,
        data: Any = None,
        keep: KeepRule | None = None,
        timeout_seconds: float = 1000.0,
        writer: Literal["direct", "orbax"] = "direct",
        check_saves: bool = False,
        fresh: bool = False,
    ) -> None:
        """
        Args:
            path: folder of this one training, on storage that all processes share; made if it is missing.
            model: NNX module, or parameters as any pytree.
            optimizer: NNX optimizer, or its state as any pytree.
            data: this process's iterator, with get_state() and set_state(state).
            keep: what to keep; the newest 3 by default.
            timeout_seconds: how long a save may take before it counts as failed.
            writer, check_saves, fresh: see ``session``.
        """
        from holdfast.store import StoreSettings

        keep_exit_codes()
        data_position.require_iterator(data)
        require_writer(writer)
        require_yes_or_no("fresh", fresh)
        self.model, self.optimizer, self.data = model, optimizer, data
        self._keep_after = timeout_seconds + _AT_EXIT_MARGIN_SECONDS
        self._last: SaveHandle | None = None
        self._metadata: dict[str, Any] = {}
        config = resolve_config(SessionArguments(path=path, keep=keep, fresh=fresh), os.environ)
        coordination = world.join(config.world)
        self._config = config
        settings = StoreSettings(save_seconds=timeout_seconds, writer=writer, check_saves=check_saves)
        self._store, attempt = open_store(config, coordination, settings)
        self._beginning = Beginning(config, attempt, coordination, remedy=FORGOTTEN_IN_CHECKPOINTER)
        self._store.claim(take_over=config.take_over)
        self._end = ExitGuard(self._finish)
        if coordination.process_count == 1:
            self._end.take_signal()

    @property
    def newest(self) -> CheckpointRef | None:
        """The newest checkpoint that was restored or committed."""
        return self._store.newest

    @property
    def metadata(self) -> dict[str, Any]:
        """The ``metadata=`` of the checkpoint that was restored; empty if it has none, or if nothing was restored."""
        return dict(self._metadata)

    @property
    def last(self) -> SaveHandle | None:
        """The latest save, whatever became of it."""
        return self._last

    def restore(self, *, new_leaves: Sequence[str] = (), dropped_leaves: Sequence[str] = ()) -> int:
        """Fill model and optimizer from the newest valid checkpoint; its step, or 0 if there is none.

        Args and errors: see ``Session.restore``.
        """
        from holdfast.state.initial import Initial
        from holdfast.training.restoring import begin_or_continue, restore_request

        request = restore_request(self._config.pin, new_leaves, dropped_leaves, fresh=self._config.fresh)
        initial = Initial(self._state())
        state, restored = begin_or_continue(self._store, self._beginning, initial, self.data, request)
        if restored is None:
            return 0
        self._metadata = notes.read(restored.folder, restored.manifest)
        self.model, self.optimizer = state[_MODEL], state.get(_OPTIMIZER)
        return restored.ref.step

    def save(
        self,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        *,
        model: PyTree = None,
        optimizer: PyTree = None,
        metadata: Mapping[str, Any] | None = None,
        keep: bool = False,
    ) -> SaveHandle:
        """Copy the state and save it in the background. Waits first for the previous save.

        If the previous save failed and nobody has looked at its handle, its error is raised here, after this save has
        begun; the handle of this save is then ``last``.

        Args:
            step: the number of the step that led to this state, the same on every process.
            metrics: numbers or 0-d arrays by name, to choose the best checkpoint.
            model: the present model; not needed for NNX objects, which change in place.
            optimizer: the present optimizer; as ``model``.
            metadata: further facts to store: a dictionary that JSON can represent. Process 0's value is stored.
            keep: never delete this checkpoint. A NumPy or JAX bool counts as its value.

        Returns:
            The handle of this save.

        Raises:
            RestoreForgotten: the run has checkpoints, and ``restore`` was not called.
            ConfigurationError: the first state to save differs from the one that ``restore`` was asked for.
            TypeError, ValueError: an argument is wrong; the message names it.
        """
        from holdfast.store import CheckpointExtras

        self._beginning.require()
        step, keep = as_step("step", step), as_flag("keep", keep)
        self._take(model, optimizer)
        noted = notes.to_bytes(metadata)
        before = self._last
        with self._end.undisturbed():
            stored_metrics = with_verdict(metrics or {}, self._config.healthy)
            request = CheckpointExtras(data_position.capture(self.data), stored_metrics, pinned=keep, metadata=noted)
            arrays = nnx.arrays_of(self._state())
            self._beginning.rehearse(arrays)
            handle = self._last = self._store.save(step, arrays, request)
        if before is not None and not before.seen and (error := before.exception()) is not None:
            raise error
        return handle

    def wait(self) -> None:
        """Return when the save in flight is committed. Raises what made it fail."""
        if self._last is not None:
            self._last.result(self._keep_after)

    def close(self) -> None:
        """Wait for the save in flight. Raises the error of a save whose handle nobody has looked at."""
        try:
            with self._end.undisturbed():
                self._store.close()
        finally:
            self._end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as failure:  # the error that ends the block must not be hidden by this one
            log.error("%s", failure)  # noqa: TRY400  its traceback says nothing more

    def _state(self) -> dict[str, PyTree]:
        state = {_MODEL: self.model}
        return state if self.optimizer is None else state | {_OPTIMIZER: self.optimizer}

    def _take(self, model: PyTree, optimizer: PyTree) -> None:
        for name, given in ((_MODEL, model), (_OPTIMIZER, optimizer)):
            held = getattr(self, name)
            if given is not None:
                setattr(self, name, given)
            elif held is not None and not nnx.changes_in_place(held):
                raise TypeError(f"{name}: found nothing, allowed: the present one: it does not change in place")

    def _finish(self) -> None:
        """The program ends without ``close``."""
        try:
            self._store.close()
        except Exception as failure:
            log.error("%s", failure)  # noqa: TRY400  nobody is left to raise it to
