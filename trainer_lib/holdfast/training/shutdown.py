"""How a process ends: soon, after a last report, with an exit code that names the reason.

A rank that fails must not take the normal way out: at exit JAX waits for the other ranks, which wait for this one in a
collective. So it reports the error and exits at once.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from holdfast.distributed.coordination import Coordination
from holdfast.errors import HoldfastError, NoValidCheckpoint, PeerLost, StorageError
from holdfast.training.loop import TrainingLoop
from holdfast.training.runtime import Runtime, TrainerState
from holdfast.training.saves import raise_failure
from holdfast_contract.exits import ExitCode
from holdfast_contract.reasons import Bucket

_INTERRUPTED: Final = 128 + 2
_PEER_TEXTS: Final = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|socket closed|broken pipe|UNAVAILABLE|coordination|heartbeat"
    r"|another task|leader task|DEADLINE_EXCEEDED|barrier",
    re.IGNORECASE,
)
"""The texts of JAX's errors whose reason is another process; they have no type of their own."""

END_SECONDS: Final = 60.0
"""How long the ranks wait for each other at the end of training."""
EXIT_SECONDS: Final = 5.0
"""The same when the program calls ``sys.exit`` or is interrupted, which other ranks may not do."""
LAST_SECONDS: Final = 3.0
"""How long process 0 lets the others leave first: its end would abort them before they exit with their own codes."""
GONE_SECONDS: Final = 0.1
"""From a process's last report to its end."""
ERROR_SAVE_SECONDS: Final = 30.0
"""How long a save in flight may still take when this rank's program has failed."""

log = logging.getLogger("holdfast")


def exit_code_of(error: BaseException) -> int:
    """The code of a process that ends by this exception."""
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    code = getattr(error, "exit_code", None)
    if isinstance(code, ExitCode):
        return int(code)
    return int(ExitCode.PEER_LOST) if follows_from_a_peer(error) else 1


def follows_from_a_peer(error: BaseException) -> bool:
    """Whether another process's end is what made this one fail."""
    if getattr(error, "exit_code", None) is ExitCode.PEER_LOST:
        return True
    jaxlib = any(cls.__name__ in {"JaxRuntimeError", "XlaRuntimeError"} for cls in type(error).__mro__)
    return jaxlib and _PEER_TEXTS.search(str(error)) is not None


def leave_at_once(error: BaseException, code: int, last: Callable[[], None] | None = None) -> NoReturn:
    """Print what happened and end the process without the usual clean-up, which would wait for other processes.

    ``last`` is called when nothing but the end is left.
    """
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
    elif error.code is not None and not isinstance(error.code, int):
        print(error.code, file=sys.stderr)
    log.info("this process ends with code %d", code)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    if last is not None:
        last()
    os._exit(code)


def end_together(runtime: Runtime, loop: TrainingLoop) -> None:
    """The loop is over on all ranks: save the last commit, wait for that, answer what was asked, wait for each other.

    Raises:
        SaveError: the last save failed, unless training was stopped on request, whose outcome shows it.
        StepsNotCommitted, StepsNotSaved, RanksDisagree: what the program trained is not saved.
        PeerLost: another rank did not come.
    """
    outcome = loop.leave()
    last_step, stopped = loop.last_step, loop.was_stopped
    with runtime.trainer.accountant.within(Bucket.SAVE_STALL):
        runtime.saves.wait()
        newest = runtime.trainer.status.newest
        if newest is not None and newest.step >= last_step:
            runtime.requests.end(newest, "")
        else:
            runtime.requests.end(None, f"training ended at step {last_step} without it")
        if not stopped:
            raise_failure(runtime.saves.last)
        if outcome.error is not None:
            raise outcome.error
        _report(runtime.trainer)
        try:
            runtime.coordination.barrier("session/end", END_SECONDS)
        except TimeoutError as error:
            raise PeerLost(f"all processes to end training ({error})", limit_seconds=END_SECONDS) from None
    runtime.store.ended_in_order()


def end_by(error: BaseException, trainer: TrainerState, runtime: Runtime | None) -> None:
    """This rank's program failed, called ``sys.exit``, or lost a peer. Ends the process if other ranks are affected.

    Returns if the process may end as usual: no other process depends on it, or all ranks leave by ``sys.exit``.
    """
    if isinstance(error, NoValidCheckpoint):
        trainer.status.restored(None, error.rejected)
    if isinstance(error, StorageError):
        trainer.status.storage_failed(str(error))
    lost = follows_from_a_peer(error)
    if runtime is not None and not lost:
        _let_save_finish(runtime)
    _report(trainer)
    if trainer.crowded and (lost or not _leaves_together(error, runtime)):
        if runtime is not None:
            runtime.peers.report_failure(error)
        leave_at_once(
            error, exit_code_of(error), _in_order(runtime) if runtime is not None and _is_shared(error) else None
        )
    if runtime is not None:
        runtime.close()


def _is_shared(error: BaseException) -> bool:
    """Whether every rank meets this error: what the store raises was agreed on, or is known to all."""
    return isinstance(error, HoldfastError) and not isinstance(error, PeerLost)


def _in_order(runtime: Runtime) -> Callable[[], None]:
    """Process 0 serves the coordination service, and JAX aborts a process whose coordinator has ended: it ends last."""
    shared = runtime.coordination
    return lambda: _wait_for_the_others(shared) if shared.process_index == 0 else _sign_off(shared)


def _wait_for_the_others(shared: Coordination) -> None:
    deadline = time.monotonic() + LAST_SECONDS
    try:
        for rank in range(1, shared.process_count):
            shared.get(f"session/gone/{rank}", max(0.001, deadline - time.monotonic()))
    except (TimeoutError, PeerLost):
        return
    if shared.process_count > 1:
        time.sleep(GONE_SECONDS)


def _sign_off(shared: Coordination) -> None:
    try:
        shared.create(f"session/gone/{shared.process_index}", "")
    except PeerLost:
        return


def follow(error: PeerLost, trainer: TrainerState) -> NoReturn:
    """Another rank has left and the main thread has not noticed: it waits for it in a collective."""
    _report(trainer)
    leave_at_once(error, int(ExitCode.PEER_LOST))


def _let_save_finish(runtime: Runtime) -> None:
    last = runtime.saves.last
    if last is not None and not last.wait(ERROR_SAVE_SECONDS):
        log.error("the save of step %d was not committed within %g s", last.step, ERROR_SAVE_SECONDS)


def _leaves_together(error: BaseException, runtime: Runtime | None) -> bool:
    if runtime is None or not isinstance(error, SystemExit):
        return False
    try:
        runtime.coordination.barrier("session/exit", EXIT_SECONDS)
    except (TimeoutError, PeerLost):
        return False
    return True


def _report(trainer: TrainerState) -> None:
    if not trainer.flush():
        log.warning("the agent did not take the last report in time")
