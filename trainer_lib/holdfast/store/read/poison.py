"""Which checkpoints lead into a crash again and again: derived from what attempts leave on storage.

After a restore, rank 0 notes in its attempt's folder what was restored. It removes the note once the attempt has a
checkpoint of its own, or ends in order. So a note that is left behind says: this attempt went on from that checkpoint
and came to nothing.
"""

from __future__ import annotations

from typing import Final

from holdfast.store.format import fs
from holdfast_contract import codec
from holdfast_contract.keys import RESTORED_FILE
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import BadManifestError, RunFolder, read_regular_file

_MAX_BYTES: Final = 4096


def note(folder: RunFolder, attempt: int, restored: CheckpointRef) -> None:
    """Say that ``attempt`` goes on from a checkpoint. Raises OSError."""
    fs.publish_file(folder.attempt_folder(attempt) / RESTORED_FILE, codec.encode(restored))


def forgive(folder: RunFolder, attempt: int) -> None:
    """The attempt has come to something, or was ended on purpose. Raises OSError."""
    fs.remove_file(folder.attempt_folder(attempt) / RESTORED_FILE)


def barren_attempts(folder: RunFolder, *, before: int) -> dict[CheckpointRef, tuple[int, ...]]:
    """By checkpoint, the attempts below ``before`` that went on from it and came to nothing. Raises OSError.

    A note that cannot be read says nothing: suspicion takes a clear record.
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
