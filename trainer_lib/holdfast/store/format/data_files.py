"""The files of a checkpoint that hold the data position of each process."""

from __future__ import annotations

from typing import Final

DATA_FOLDER: Final = "data"


def data_file(rank: int) -> str:
    """The path of a rank's data position, relative to the step's folder."""
    return f"{DATA_FOLDER}/process-{rank}.bin"
