"""Checkpoints for a program that has a loop of its own: an object that saves when told, and says where to go on."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from holdfast.distributed import join as world
from holdfast.policies.health import with_verdict
from holdfast.state import data_position, nnx
from holdfast.state import metadata as notes
from holdfast.store.store_settings import require_writer
from holdfast.training.config import Arguments, look_around
from holdfast.training.exit_guard import OrderlyEnd
from holdfast.training.runtime import open_store

if TYPE_CHECKING:
    from holdfast.policies.keeping import KeepRule
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
    ) -> None:
        """
        Args:
            path: folder of this one training, on storage that all processes share; made if it is missing.
            model: NNX module, or parameters as any pytree.
            optimizer: NNX optimizer, or its state as any pytree.
            data: this process's iterator, with get_state() and set_state(state).
            keep: what to keep; the newest 3 by default.
            timeout_seconds: how long a save may take before it counts as failed.
            writer, check_saves: see ``session``.
        """
        from holdfast.store import StoreSettings

        data_position.require_iterator(data)
        require_writer(writer)
        self.model, self.optimizer, self.data = model, optimizer, data
        self._keep_after = timeout_seconds + _AT_EXIT_MARGIN_SECONDS
        self._last: SaveHandle | None = None
        self._metadata: dict[str, Any] = {}
        where = look_around(Arguments(path, None, None, keep, None), os.environ)
        coordination = world.join(where.world)
        self._process_count = coordination.process_count
        self._pin, self._healthy = where.pin, where.healthy
        settings = StoreSettings(save_seconds=timeout_seconds, writer=writer, check_saves=check_saves)
        self._store, _ = open_store(where, coordination, settings)
        self._store.claim(take_over=where.take_over)
        self._end = OrderlyEnd(self._finish)
        if self._process_count == 1:
            self._end.take_signal()

    @property
    def newest(self) -> CheckpointRef | None:
        """The newest checkpoint that was restored or committed."""
        return self._store.newest

    @property
    def metadata(self) -> dict[str, Any]:
        """What the program noted in the checkpoint that was restored; empty if nothing, or if there was none."""
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
        from holdfast.training.restoring import begin_or_continue, wanted

        wish = wanted(self._pin, new_leaves, dropped_leaves)
        state, restored = begin_or_continue(self._store, Initial(self._state()), self.data, wish, self._process_count)
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
        """Save in the background; returns when the state is copied. Waits first for the save before this one.

        If that one has failed and nobody has looked at its handle, its error is raised, after this save has begun:
        the handle is then in ``last``.

        Args:
            step: the number of the step that led here; every process says the same.
            metrics: numbers, also as arrays, for choosing the best.
            model: the present one, unless it is made of NNX objects.
            optimizer: as ``model``.
            metadata: what else to note in the checkpoint: a dictionary that JSON keeps. Process 0's counts.
            keep: never delete this checkpoint.
        """
        from holdfast.store import CheckpointExtras

        self._take(model, optimizer)
        noted = notes.to_bytes(metadata)
        before = self._last
        with self._end.undisturbed():
            told = with_verdict(metrics or {}, self._healthy)
            request = CheckpointExtras(data_position.capture(self.data), told, pinned=keep, metadata=noted)
            handle = self._last = self._store.save(step, nnx.arrays_of(self._state()), request)
        if before is not None and not before.seen and (error := before.exception()) is not None:
            raise error
        return handle

    def wait(self) -> None:
        """Return when the save in flight is committed. Raises what made it fail."""
        if self._last is not None:
            self._last.result(self._keep_after)

    def close(self) -> None:
        """Wait for the save in flight; raises the error of a save that nobody has looked at."""
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
                raise TypeError(f"{name}: found nothing, allowed: the present one, since it does not change in place")

    def _finish(self) -> None:
        """The program ends without ``close``."""
        try:
            self._store.close()
        except Exception as failure:
            log.error("%s", failure)  # noqa: TRY400  nobody is left to raise it to
