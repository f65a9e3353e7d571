"""Exit codes of a trainer process and of an agent, and so of a container.

Holdfast's codes, 64 and 80 to 88, avoid the common codes of programs and the 128 + n that stands for a signal.
"""

from __future__ import annotations

import enum
from typing import Final


class ExitCode(enum.IntEnum):
    """How a trainer process or an agent ended. Each code says who writes it; agent and operator read them."""

    DONE = 0
    """Library and agent: training reached its end, and the final save is committed."""

    USAGE = 64
    """Agent: its arguments or environment are invalid; the last line of stderr names the field."""

    SAVED = 80
    """Library and agent: stopped on request (SIGTERM or stop), and the save is committed."""

    NOT_SAVED = 81
    """Library and agent: stopped on request without a save in time; the newest checkpoint is an older one."""

    ORPHANED = 82
    """Agent: no trainer ran, and the operator could not be reached within the orphan limit. Consumes no budget."""

    SUPERSEDED = 83
    """Agent: asked to exit, because this pod is no longer a member or the job has failed. Library: the attempt's folder
    belongs to another process."""

    STORAGE = 84
    """Library: storage cannot be used (missing, not writable), or a restore could not finish."""

    NO_VALID_CHECKPOINT = 85
    """Library: checkpoints exist, and none is valid. Training never starts from scratch over them."""

    FOREIGN_RUN = 86
    """Library: the run's owner record names another job, and takeOver is not set."""

    PEER_LOST = 87
    """Library: this rank ended because another rank did."""

    HANG = 88
    """Agent: the trainer made no progress within its limit and was killed, or processes survived SIGKILL."""


FOLLOWER_CODES: Final = frozenset({ExitCode.PEER_LOST, 134, 128 + 9, 128 + 15})
"""Codes that may merely follow another rank's end (JAX aborts its peers with 134). The operator takes a rank with such
a code for the culprit only if no rank of the same attempt ended otherwise."""
