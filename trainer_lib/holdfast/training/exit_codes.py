"""The exit code of a program that ends by an error of ours, where nobody but the interpreter meets the error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Final

from holdfast.errors import HoldfastError

_MARK: Final = "_holdfast_exit_codes"


def keep_exit_codes() -> None:
    """From now on an uncaught HoldfastError ends the interpreter with the error's own code, after the usual traceback.

    An error that the program catches is not concerned, and neither is an interactive interpreter or a notebook. A hook
    that was there before still runs. Call it again without effect.
    """
    if getattr(sys.excepthook, _MARK, False):
        return
    before: Any = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if isinstance(error, HoldfastError) and not _is_interactive():
            # The interpreter ends by a SystemExit that its hook raises: in order, with exit hooks and flushed streams.
            raise SystemExit(int(error.exit_code))

    setattr(hook, _MARK, True)
    sys.excepthook = hook


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)
