"""Exit codes: what a trainer process or an agent (so: a container) says by the way it ends.

Codes 0 to 127 belong to the user's program and 128 + n to signals; ours lie between, away from both conventions.
"""

from __future__ import annotations

import enum
from typing import Final


class ExitCode(enum.IntEnum):
    """Written by library and agent, read by agent and operator."""

    DONE = 0
    """Training reached its end and the final save is committed."""

    USAGE = 64
    """Agent: started with arguments or an environment that cannot work; the last line of stderr names the field."""

    SAVED = 80
    """Stopped on request (SIGTERM or stop) after a save that is committed."""

    NOT_SAVED = 81
    """Stopped on request without a save in time; the newest manifest is the one before."""

    ORPHANED = 82
    """Agent: the trainer had ended, and the operator could not be reached for the orphan limit. Not counted."""

    SUPERSEDED = 83
    """Agent: told to exit, for this pod is no longer a member or the job has failed. Library: the attempt folder
    belongs to another."""

    STORAGE = 84
    """Library: storage cannot be used (missing, not writable) or a restore could not finish."""

    NO_VALID_CHECKPOINT = 85
    """Library: candidates exist and none is valid. Never start from scratch over them."""

    FOREIGN_RUN = 86
    """Library: the run's owner record names another job and takeOver was not given."""

    PEER_LOST = 87
    """Library: this rank ended because another rank did. The culprit is elsewhere."""

    HANG = 88
    """Agent: the trainer completed no step within the limit and was killed."""


FOLLOWER_CODES: Final = frozenset({ExitCode.PEER_LOST, 134, 128 + 9, 128 + 15})
"""Codes that may merely follow another rank's end (JAX aborts its peers with 134); never the first culprit if another
rank of the same attempt ended otherwise."""
