"""An argument that names something that does not exist."""

from __future__ import annotations


class UsageError(Exception):
    """The text names the argument, what was found and what is allowed. The command ends with exit code 64."""
