"""Checkpoints that lead into a crash again and again, found by what attempts leave on storage.

After a restore, rank 0 writes a note into its attempt's folder: what was restored. It removes the note once the attempt has
a checkpoint of its own, or ends on purpose. A note that is left therefore means: this attempt continued from that
checkpoint and ended without a checkpoint of its own.
"""

from __future__ import annotations

from typing import Final

from holdfast.store.format import fs
from holdfast.store.handle import logger
from holdfast_contract import codec
from holdfast_contract.keys import RESTORED_FILE
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import BadManifestError, RunFolder, read_regular_file

_MAX_BYTES: Final = 4096


class RestoreNote:
    """The note of one attempt. An error of storage is logged, not raised: saves report what is wrong with storage."""

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self._path = folder.attempt_folder(attempt) / RESTORED_FILE
        self._is_written = False

    def write(self, restored: CheckpointRef) -> None:
        """Record that the attempt continues from ``restored``."""
        try:
            fs.publish_file(self._path, codec.encode(restored))
        except OSError as error:
            logger.warning("the checkpoint that this attempt continues from could not be recorded: %s", error)
        else:
            self._is_written = True

    def remove(self) -> None:
        """The attempt has a checkpoint of its own, or ends on purpose."""
        if not self._is_written:
            return
        self._is_written = False
        try:
            fs.remove_file(self._path)
        except OSError as error:
            logger.warning("the record of the checkpoint that this attempt continued from was not deleted: %s", error)


def attempts_without_checkpoint(folder: RunFolder, *, before: int) -> dict[CheckpointRef, tuple[int, ...]]:
    """By checkpoint, the attempts below ``before`` that continued from it and saved nothing. Raises OSError.

    A note that cannot be read is ignored: only a clear record counts against a checkpoint.
    """
    found: dict[CheckpointRef, tuple[int, ...]] = {}
    for attempt in folder.attempts():
        if attempt >= before:
            continue
        try:
            data = read_regular_file(folder.attempt_folder(attempt) / RESTORED_FILE, _MAX_BYTES)
            ref = None if data is None else codec.decode(CheckpointRef, data)
        except (BadManifestError, codec.CodecError):
            continue
        if ref is not None:
            found[ref] = (*found.get(ref, ()), attempt)
    return found
