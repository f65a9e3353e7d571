"""Damage to sealed checkpoints of plain Orbax, in every layout that it writes: each file, each kind of damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1 as orbax_v1

import holdfast
from holdfast import errors
from holdfast_contract.keys import MANIFEST_FILE
from tests.support.storage.damage import DAMAGE

STEPS = (1, 2)


def _state(seed: int) -> dict[str, Any]:
    return {
        "w": jnp.arange(4096.0).reshape(64, 64) + seed,
        "b": jnp.full(3, seed, jnp.bfloat16),
        "step": np.int32(seed),
    }


def _by_manager(root: Path, **handler: Any) -> None:
    made = ocp.PyTreeCheckpointHandler(**handler)
    with ocp.CheckpointManager(root, item_handlers=made) as manager:
        for step in STEPS:
            manager.save(step, args=ocp.args.PyTreeSave(_state(step)))


def _by_second_generation(root: Path) -> None:
    with orbax_v1.training.Checkpointer(root) as checkpointer:
        for step in STEPS:
            checkpointer.save(step, _state(step) | {"step": step})


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "ocdbt zarr2": lambda root: _by_manager(root, use_ocdbt=True, use_zarr3=False),
    "ocdbt zarr3": lambda root: _by_manager(root, use_ocdbt=True, use_zarr3=True),
    "ocdbt uncompressed": lambda root: _by_manager(root, use_ocdbt=True, use_compression=False),
    "files zarr2": lambda root: _by_manager(root, use_ocdbt=False, use_zarr3=False),
    "files zarr3": lambda root: _by_manager(root, use_ocdbt=False, use_zarr3=True),
    "second generation": _by_second_generation,
}
KINDS = {"ocdbt": {"manifest.ocdbt", "_METADATA"}, "files zarr2": {".zarray"}, "files zarr3": {"zarr.json"}}


@pytest.fixture(scope="module", params=LAYOUTS)
def sealed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sealed steps in one layout."""
    root = tmp_path_factory.mktemp("sealed") / "mine"
    LAYOUTS[request.param](root)
    assert [ref.step for ref in holdfast.seal(root)] == list(STEPS)
    names = {p.name for p in (root / "2").rglob("*") if p.is_file()}
    for kind, expected in KINDS.items():
        if request.param.startswith(kind):
            assert expected <= names, f"{request.param} is another layout than it was: {sorted(names)}"
    return root


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_file_of_every_layout_is_guarded(sealed: Path, tmp_path: Path, damage: str) -> None:
    root = tmp_path / "mine"
    shutil.copytree(sealed, root)
    files = [p for p in (root / "2").rglob("*") if p.is_file() and p.name != MANIFEST_FILE and p.stat().st_size]
    assert len(files) >= 8
    harmed = 0
    for path in files:
        before = path.read_bytes()
        DAMAGE[damage](path)
        if path.is_symlink() or not path.is_file() or path.read_bytes() != before:
            with pytest.raises(errors.DamagedCheckpoint) as caught:
                holdfast.verify_sealed(root, 2)
            assert str(path.relative_to(root / "2")) in caught.value.reason
            harmed += 1
        _put_back(path, before)
    assert harmed >= 8
    assert holdfast.newest_sealed(root) == 2, "all is as it was"
    DAMAGE[damage](max(files, key=lambda p: p.stat().st_size))
    assert holdfast.newest_sealed(root) == 1


def _put_back(path: Path, content: bytes) -> None:
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".elsewhere").unlink(missing_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["lengthened", "deleted", "linked"])
def test_empty_files_are_guarded_too(sealed: Path, tmp_path: Path, damage: str) -> None:
    root = tmp_path / "mine"
    shutil.copytree(sealed, root)
    for path in [p for p in (root / "2").rglob("*") if p.is_file() and not p.stat().st_size]:
        DAMAGE[damage](path)
        with pytest.raises(errors.DamagedCheckpoint, match=path.name):
            holdfast.verify_sealed(root, 2)
        _put_back(path, b"")


def test_a_folder_that_is_gone_is_refused(sealed: Path, tmp_path: Path) -> None:
    folders = [p.relative_to(sealed / "2") for p in (sealed / "2").rglob("*") if p.is_dir()]
    assert folders
    for number, folder in enumerate(folders):
        root = tmp_path / str(number) / "mine"
        shutil.copytree(sealed, root)
        shutil.rmtree(root / "2" / folder)
        with pytest.raises(errors.DamagedCheckpoint, match=str(folder)):
            holdfast.verify_sealed(root, 2)
        assert holdfast.newest_sealed(root) == 1


def test_what_looks_like_a_newer_step_is_passed_over(sealed: Path, tmp_path: Path) -> None:
    root = tmp_path / "mine"
    shutil.copytree(sealed, root)
    (root / "3").mkdir()
    (root / "4.orbax-checkpoint-tmp").mkdir()
    shutil.copytree(root / "2", root / "5", ignore=shutil.ignore_patterns("commit_success.txt", MANIFEST_FILE))
    assert holdfast.newest_sealed(root) == 2
    assert holdfast.seal(root) == (), "none of them is a finished save"
    shutil.copytree(root / "2", root / "6")
    assert holdfast.newest_sealed(root) == 2, "a copy under another number is no checkpoint of that number"
