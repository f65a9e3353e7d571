"""Flips one bit of tensor data in a checkpoint, and lets plain Orbax load the result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast_contract import keys
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import RunFolder

PLAIN_ORBAX_SECONDS: Final = 90


@dataclass(frozen=True)
class Flip:
    """One changed bit: ``file`` relative to the step's folder, ``offset`` in bytes."""

    ref: CheckpointRef
    file: str
    offset: int
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.offset} in {self.file}"


def flip_newest(run_folder: Path) -> Flip:
    """Flip one bit in the middle of the newest checkpoint's largest file, which holds tensor data."""
    folder = RunFolder(run_folder)
    newest = folder.candidates(1)[0]
    step = folder.step_folder(newest.attempt, newest.step)
    manifest = json.loads((step / keys.MANIFEST_FILE).read_bytes())
    largest = max(manifest["files"], key=lambda f: f["size"])
    flip = Flip(newest, largest["path"], largest["size"] // 2, 3)
    _flip(step / flip.file, flip)
    return flip


def _flip(path: Path, flip: Flip) -> None:
    with path.open("r+b") as file:
        file.seek(flip.offset)
        (byte,) = file.read(1)
        file.seek(flip.offset)
        file.write(bytes([byte ^ (1 << flip.bit)]))
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class PlainLoad:
    """The result of loading a damaged checkpoint with plain Orbax."""

    raised: str
    digest_damaged: str
    digest_repaired: str

    @property
    def silent(self) -> bool:
        """Whether Orbax loaded wrong numbers without an error."""
        return not self.raised and self.digest_damaged != self.digest_repaired


def keep_aside(run_folder: Path, flip: Flip, folder: Path) -> Path:
    """Copy the damaged step below ``folder``: before plain Orbax has loaded it, retention might delete the original."""
    step = RunFolder(run_folder).step_folder(flip.ref.attempt, flip.ref.step)
    return Path(shutil.copytree(step, folder / "damaged"))


def load_with_plain_orbax(step: Path, flip: Flip) -> PlainLoad:
    """Load the damaged folder with Orbax alone, then again with the bit flipped back: the control arm."""
    raised, damaged = _orbax_digest(step)
    _flip(step / flip.file, flip)
    error, repaired = _orbax_digest(step)
    _flip(step / flip.file, flip)
    if error:
        raise RuntimeError(f"plain Orbax cannot load the undamaged checkpoint {step}: {error}")
    return PlainLoad(raised, damaged, repaired)


def _orbax_digest(step: Path) -> tuple[str, str]:
    program = Path(__file__).with_name("plain_orbax.py")
    done = subprocess.run(
        [sys.executable, str(program), str(step / "state")],
        capture_output=True,
        text=True,
        timeout=PLAIN_ORBAX_SECONDS,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        check=False,
    )
    if done.returncode == 0:
        return "", done.stdout.strip()
    return (done.stderr.strip().splitlines() or ["plain Orbax failed without a message"])[-1], ""
