"""Attempts that began anew although the run had checkpoints: the last ones before them stay on storage.

Such an attempt does not descend from the checkpoints before it, and a keep rule that counts the newest would delete them
one by one. So process 0 leaves a file in the attempt's folder before the attempt saves anything.
"""

from __future__ import annotations

import os

from holdfast.store.format import fs
from holdfast_contract import codec
from holdfast_contract.keys import ANEW_FILE
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import RunFolder


def note(folder: RunFolder, attempt: int, newest: CheckpointRef) -> None:
    """Say that ``attempt`` begins anew; ``newest`` is the newest checkpoint before it. Raises OSError."""
    fs.publish_file(folder.attempt_folder(attempt) / ANEW_FILE, codec.encode(newest))


def begun_anew(folder: RunFolder, *, up_to: int) -> tuple[int, ...]:
    """The attempts up to ``up_to`` that began anew, ascending. Raises OSError."""
    return tuple(
        attempt
        for attempt in folder.attempts()
        if attempt <= up_to and os.path.lexists(folder.attempt_folder(attempt) / ANEW_FILE)
    )
