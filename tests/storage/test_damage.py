"""Damage at rest: each kind, in each kind of file, is refused by name, and the checkpoint before it is used."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from holdfast import errors
from holdfast.store import UNPINNED, CheckpointExtras, Restored
from holdfast_contract.exits import ExitCode
from holdfast_contract.keys import MANIFEST_FILE
from holdfast_contract.manifest import CheckpointRef, Rejection, from_bytes, to_bytes
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.damage import DAMAGE
from tests.support.storage.states import bits, flip_bit, small_state, store_at


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attempt 1 committed steps 1 and 2."""
    root = tmp_path_factory.mktemp("saved") / "char-lm"
    store = store_at(root, 1)
    for step in (1, 2):
        store.save(step, small_state(step), CheckpointExtras(data=str(step).encode())).result(30)
    store.close()
    return root


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    shutil.copytree(saved, tmp_path / saved.name)
    return tmp_path / saved.name


def _restore(root: Path, pin: CheckpointRef | None = None) -> Restored | None:
    store = store_at(root, RunFolder(root).highest_attempt() + 1)
    return store.restore(pin or UNPINNED, small_state(0))


def _require_first_step(restored: Restored | None) -> str:
    """Step 1 was restored exactly; the reason why step 2 was not."""
    assert restored is not None
    assert (restored.ref.attempt, restored.ref.step, restored.data) == (1, 1, b"1")
    assert bits(restored.state) == bits(small_state(1))
    assert [(r.attempt, r.step) for r in restored.rejected] == [(1, 2)]
    return restored.rejected[0].reason


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_file_is_guarded_against_every_damage(saved: Path, tmp_path: Path, damage: str) -> None:
    entries = [e.path for e in RunFolder(saved).survey().found[0].manifest.files]
    kinds = {_kind_of(path): path for path in entries}
    assert set(kinds) >= {"data", "array data", "tree", "metadata", "structure"}, kinds
    for number, path in enumerate(entries):
        root = tmp_path / str(number) / saved.name
        shutil.copytree(saved, root)
        DAMAGE[damage](root / "1" / "2" / path)
        assert path in _require_first_step(_restore(root))


def test_a_folder_that_is_gone_is_named_by_what_was_in_it(saved: Path, tmp_path: Path) -> None:
    step = saved / "1" / "2"
    folders = [p.relative_to(step) for p in step.rglob("*") if p.is_dir() and any(q.is_file() for q in p.rglob("*"))]
    assert {"state", "data"} <= {str(p) for p in folders}
    for number, folder in enumerate(folders):
        root = tmp_path / str(number) / saved.name
        shutil.copytree(saved, root)
        shutil.rmtree(root / "1" / "2" / folder)
        assert f"{folder}/" in _require_first_step(_restore(root))


def _kind_of(path: str) -> str:
    if path.startswith("data/"):
        return "data"
    if "/ocdbt.process_" in path:
        return "array data"
    if path.startswith("state/d/") or path.endswith("manifest.ocdbt"):
        return "tree"
    return "metadata" if path.startswith("state/") else "structure"


@pytest.mark.parametrize("damage", ["truncated", "emptied", "zeroed", "linked"])
def test_a_damaged_manifest_is_refused_not_overlooked(run: Path, damage: str) -> None:
    path = run / "1" / "2" / MANIFEST_FILE
    path.write_bytes(path.read_bytes()[: 3 * path.stat().st_size // 4])
    DAMAGE[damage](path)
    assert MANIFEST_FILE in _require_first_step(_restore(run))


def test_every_flipped_bit_of_the_manifest_is_refused(run: Path) -> None:
    path = run / "1" / "2" / MANIFEST_FILE
    good = path.read_bytes()
    for position in random.Random(1).sample(range(len(good)), 200):
        flip_bit(path, byte=position)
        entry = RunFolder(run).look(1, 2)
        assert isinstance(entry, Rejection)
        assert entry.reason.startswith(f"{MANIFEST_FILE}: ")
        path.write_bytes(good)
    flip_bit(path, byte=good.index(b'"device_kind"') + 17)
    assert "sha256: found" in _require_first_step(_restore(run))


def test_whole_manifest_of_another_checkpoint_is_not_the_pinned_one(run: Path) -> None:
    pin = RunFolder(run).candidates()[0]
    path = run / "1" / "2" / MANIFEST_FILE
    path.write_bytes(to_bytes(replace(from_bytes(path.read_bytes()), metrics={"loss": 0.0})))
    assert "not the pinned one" in _require_first_step(_restore(run, pin))


def test_a_step_without_manifest_does_not_exist(run: Path) -> None:
    (run / "1" / "2" / MANIFEST_FILE).unlink()
    restored = _restore(run)
    assert restored is not None
    assert (restored.ref.step, restored.rejected) == (1, ())


def test_a_pin_whose_manifest_vanished_is_named(run: Path) -> None:
    pin = RunFolder(run).candidates()[0]
    (run / "1" / "2" / MANIFEST_FILE).unlink()
    assert "pinned checkpoint does not exist" in _require_first_step(_restore(run, pin))


def test_the_pin_is_an_upper_bound(run: Path) -> None:
    first = RunFolder(run).candidates()[1]
    restored = _restore(run, first)
    assert restored is not None
    assert (restored.ref, restored.rejected) == (first, ())
    store = store_at(run, 9)
    assert store.restore(None, small_state(0)) is None


def test_junk_that_looks_like_a_checkpoint_is_no_candidate(run: Path) -> None:
    for name in ("7", "0012", "+3", "9.tmp", "٤", "-1"):
        (run / "1" / name).mkdir()
    (run / "1" / "8").write_text("a file")
    (run / "12").write_text("a file, not an attempt")
    (run / "lost+found").mkdir()
    restored = _restore(run)
    assert restored is not None
    assert (restored.ref.step, restored.rejected) == (2, ())
    assert (run / "1" / "7").is_dir(), "what we did not write stays"


def test_a_copy_of_another_step_or_run_is_refused(run: Path) -> None:
    shutil.rmtree(run / "1" / "2")
    shutil.copytree(run / "1" / "1", run / "1" / "2")
    assert "attempt, step: found" in _require_first_step(_restore(run))


def test_links_to_attempts_and_steps_are_not_followed(run: Path, tmp_path: Path) -> None:
    (run / "1" / "2").rename(tmp_path / "moved")
    (run / "1" / "2").symlink_to(tmp_path / "moved")
    (run / "5").symlink_to(run / "1")
    assert "symbolic link" in _require_first_step(_restore(run))


def test_when_all_are_damaged_nothing_starts_from_scratch(run: Path) -> None:
    for step in (1, 2):
        flip_bit(run / "1" / str(step) / "data" / "process-0.bin", byte=0)
    with pytest.raises(errors.NoValidCheckpoint) as caught:
        _restore(run)
    assert caught.value.exit_code is ExitCode.NO_VALID_CHECKPOINT
    assert [(r.step, "data/process-0.bin" in r.reason) for r in caught.value.rejected] == [(2, True), (1, True)]
    assert "another run name" in str(caught.value)


def test_an_empty_run_restores_nothing(root: Path) -> None:
    assert store_at(root, 1).restore(UNPINNED, small_state(0)) is None


def test_a_later_attempt_supersedes_a_higher_step_of_an_earlier_one(run: Path) -> None:
    store = store_at(run, 2)
    store.save(1, small_state(41)).result(30)
    store.close()
    restored = _restore(run)
    assert restored is not None
    assert (restored.ref.attempt, restored.ref.step) == (2, 1)
    assert bits(restored.state) == bits(small_state(41))


def test_control_plain_orbax_takes_a_flipped_bit_without_a_word(run: Path) -> None:
    folder = run / "1" / "2"
    needle = np.asarray(small_state(2)["w"]).tobytes()
    [data] = [p for p in (folder / "state").rglob("*") if p.is_file() and needle in p.read_bytes()]
    flip_bit(data, byte=data.read_bytes().index(needle) + 5)
    loaded = ocp.StandardCheckpointer().restore(folder / "state")
    assert not np.array_equal(loaded["w"], small_state(2)["w"]), "Orbax accepted it, with a wrong number"
    assert data.relative_to(folder).as_posix() in _require_first_step(_restore(run))
