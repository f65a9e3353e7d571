"""The log lines of the library: logger ``holdfast``, visible in a pod without any set-up."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("holdfast")


def show_in_a_pod() -> None:
    """Show informational lines on standard error, unless the program has set up logging itself.

    A pod's log is read by people who did not write the program; outside a pod a library keeps quiet by default.
    """
    if log.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("holdfast: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
