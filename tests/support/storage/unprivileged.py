"""Storage met by a user who is not root: root may read and write everywhere, so permissions show nothing to it.

``in_process_of_nobody(task, folder)`` runs a task of this module in a process of its own, which imports everything,
gives its privileges away if it has any, and prints what it met as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from holdfast import errors
from holdfast.store import UNPINNED
from holdfast.store.format import fs
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import bits, small_state, store_at

NOBODY: Final = 65534
REPOSITORY: Final = Path(__file__).resolve().parents[3]
Told = dict[str, Any]


@contextmanager
def public_folder() -> Iterator[Path]:
    """A new folder that everybody may reach, which is not so of pytest's, and nobody's own if we are root."""
    with tempfile.TemporaryDirectory(prefix="holdfast-permissions-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        try:
            yield folder
        finally:
            for path in [folder, *folder.rglob("*")]:
                if path.is_dir() and os.stat(path).st_uid == os.geteuid():
                    path.chmod(0o755)


def in_process_of_nobody(task: Callable[[Path], Told], folder: Path) -> Told:
    """What ``task(folder)`` returns there."""
    command = [sys.executable, "-m", "tests.support.storage.unprivileged", task.__name__, str(folder)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: Told = json.loads(done.stdout.splitlines()[-1])
    return told


def claim(root: Path) -> Told:
    """Claim the run for its next attempt."""
    try:
        store_at(root, RunFolder(root).highest_attempt() + 1).close()
    except errors.StorageError as error:
        return _met(error)
    return {"error": ""}


def save_into_a_folder_that_was_closed(root: Path) -> Told:
    """Step 1 well, step 2 where nothing may be written, step 3 where it may again."""
    store = store_at(root, 1)
    store.save(1, small_state(1)).result(30)
    (root / "1").chmod(0o555)
    try:
        store.save(2, small_state(2)).result(30)
        told: Told = {"error": ""}
    except errors.StorageError as error:
        told = _met(error)
    (root / "1").chmod(0o755)
    store.save(3, small_state(3)).result(30)
    store.close()
    return told | {"steps": [ref.step for ref in RunFolder(root).candidates()]}


def restore_from_what_may_not_be_read(root: Path) -> Told:
    """Two steps; a file of the newer one is closed, then opened again."""
    store = store_at(root, 1)
    for step in (1, 2):
        store.save(step, small_state(step)).result(30)
    store.close()
    closed = max((root / "1" / "2" / "state").rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else -1)
    closed.chmod(0)
    try:
        store_at(root, 2).restore(UNPINNED, small_state(0))
        told: Told = {"error": ""}
    except errors.StorageError as error:
        told = _met(error)
    closed.chmod(0o644)
    restored = store_at(root, 3).restore(UNPINNED, small_state(0))
    assert restored is not None
    return told | {
        "closed": str(closed),
        "step": restored.ref.step,
        "equal": bits(restored.state) == bits(small_state(2)),
    }


def delete_from_a_folder_that_was_closed(root: Path) -> Told:
    """A step's folder cannot be renamed away where its parent may not be written."""
    store = store_at(root, 1)
    store.save(1, small_state(1)).result(30)
    store.close()
    (root / "1").chmod(0o555)
    try:
        fs.discard_folder(root / "1" / "1")
        told: Told = {"errno": 0}
    except OSError as error:
        told = {"errno": error.errno}
    (root / "1").chmod(0o755)
    return told | {"steps": [ref.step for ref in RunFolder(root).candidates()]}


def _met(error: errors.StorageError) -> Told:
    return {
        "error": type(error).__name__,
        "errno": error.errno,
        "path": str(error.path),
        "code": int(error.exit_code),
        "text": str(error),
    }


if __name__ == "__main__":
    chosen = globals()[sys.argv[1]]
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    print(json.dumps(chosen(Path(sys.argv[2]))))
