"""Looking at checkpoints and loading them, whole or in parts, without a session."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import orbax.checkpoint as ocp
import pytest

import holdfast
from holdfast import errors
from holdfast.catalog.contents import contents_of
from holdfast.catalog.listing import only_checkpoint_folder
from holdfast.store import CheckpointExtras
from holdfast.store.format import fs
from holdfast.store.read import verified_read
from holdfast_contract.keys import MANIFEST_FILE
from holdfast_contract.runfolder import Found, RunFolder
from tests.support.storage.states import bits, flip_bit, store_at


@flax.struct.dataclass
class Trained:
    params: Any
    opt: Any
    key: Any
    step: int


def _state(seed: int) -> Trained:
    params = {
        "encoder": [{"w": jnp.full((4, 4), seed + i, jnp.bfloat16)} for i in range(3)],
        "head": {"w": jnp.arange(8.0) + seed, "none": jnp.zeros((0, 3))},
    }
    return Trained(params, optax.adam(1e-3).init(params), jax.random.key(seed), seed)


LOSSES = {1: 0.5, 2: 0.1, 3: 0.3, 4: float("nan")}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run ``char-lm``: attempt 1 committed steps 1 to 3, attempt 2 steps 3 and 4; seed 10 * attempt + step."""
    root = tmp_path_factory.mktemp("saved") / "char-lm"
    for attempt, steps in ((1, (1, 2, 3)), (2, (3, 4))):
        store = store_at(root, attempt)
        for step in steps:
            store.save(step, _state(10 * attempt + step), CheckpointExtras(b"position", {"loss": LOSSES[step]})).result(
                30
            )
        store.close()
    return root


@pytest.fixture
def path(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "checkpoints" / saved.name)
    return tmp_path / "checkpoints"


def _damage(path: Path, attempt: int, step: int) -> None:
    files = (p for p in (path / "char-lm" / str(attempt) / str(step)).rglob("*") if p.is_file())
    flip_bit(max(files, key=lambda p: p.stat().st_size))


def _seed(loaded: Any) -> int:
    return int(loaded.state["step"])


def test_the_newest_a_step_and_the_best(path: Path) -> None:
    assert _seed(holdfast.load(path)) == 24
    assert _seed(holdfast.load(path, step=2)) == 12
    assert _seed(holdfast.load(path, step=3)) == 23, "of several attempts the newest counts"
    assert _seed(holdfast.load(path / "char-lm" / "1", step=3)) == 13
    assert _seed(holdfast.load(path / "char-lm" / "1" / "1")) == 11
    assert _seed(holdfast.load(path, best=("loss", "min"))) == 12
    assert _seed(holdfast.load(path, best=("loss", "max"))) == 11
    chosen = holdfast.load(path, run="char-lm", best=("loss", "min"))
    assert (chosen.attempt, chosen.step, chosen.metrics, chosen.rejected) == (1, 2, {"loss": 0.1}, ())


def test_damage_is_walked_past_unless_one_checkpoint_was_asked_for(path: Path) -> None:
    _damage(path, 2, 4)
    _damage(path, 1, 2)
    newest = holdfast.load(path)
    assert (newest.step, [(r.attempt, r.step) for r in newest.rejected]) == (3, [(2, 4)])
    assert "digest" in newest.rejected[0].reason
    best = holdfast.load(path, best=("loss", "min"))
    assert (best.attempt, best.step, [(r.attempt, r.step) for r in best.rejected]) == (2, 3, [(1, 2)])
    for chosen in ({"step": 4}, {"step": 2}):
        with pytest.raises(errors.DamagedCheckpoint):
            holdfast.load(path, **chosen)  # type: ignore[arg-type]
    with pytest.raises(errors.DamagedCheckpoint):
        holdfast.load(path / "char-lm" / "2" / "4")
    for attempt, step in ((2, 3), (1, 3), (1, 1)):
        _damage(path, attempt, step)
    with pytest.raises(errors.NoValidCheckpoint) as caught:
        holdfast.load(path)
    assert len(caught.value.rejected) == 5


def test_what_is_handed_out_is_compared_in_the_same_reading(root: Path) -> None:
    store = store_at(root, 1)
    for step in (1, 2):
        store.save(step, {"w": jnp.full(4_000_000, step, jnp.float32)}).result(30)
    store.close()
    newest = RunFolder(root).step_folder(1, 2)
    size = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
    before = _bytes_read()
    assert float(holdfast.load(root.parent).state["w"][7]) == 2
    assert size <= _bytes_read() - before < 1.1 * size
    flip_bit(max((file for file in newest.rglob("d/*") if file.is_file()), key=lambda file: file.stat().st_size))
    older = holdfast.load(root.parent)
    assert (older.step, float(older.state["w"][7])) == (1, 1)
    assert "digest" in older.rejected[0].reason


@pytest.mark.parametrize("what", ["data/*", "*.json", "state/_METADATA", "state/**/manifest.ocdbt"])
def test_files_that_hold_no_number_are_compared_too(path: Path, what: str) -> None:
    newest = path / "char-lm" / "2" / "4"
    flip_bit(next(file for file in sorted(newest.glob(what)) if file.name != MANIFEST_FILE))
    assert [(r.attempt, r.step) for r in holdfast.load(path).rejected] == [(2, 4)]


def test_what_is_not_there_is_said(path: Path) -> None:
    for arguments in ({"step": 9}, {"run": "other"}, {"best": ("accuracy", "max")}):
        with pytest.raises(FileNotFoundError):
            holdfast.load(path, **arguments)
    shutil.copytree(path / "char-lm", path / "second")
    with pytest.raises(ValueError, match="char-lm, second"):
        holdfast.load(path)
    with pytest.raises(ValueError, match="both"):
        holdfast.load(path, run="char-lm", step=1, best=("loss", "min"))
    with pytest.raises(ValueError, match="mode"):
        holdfast.load(path, run="char-lm", best=("loss", "least"))  # type: ignore[arg-type]


def test_the_whole_state_without_a_template(path: Path) -> None:
    loaded = holdfast.load(path, step=1).state
    expected = _state(11)
    assert bits(loaded["params"]["encoder"]["2"]) == bits(expected.params["encoder"][2])
    assert bits(loaded["key"]) == bits(expected.key)
    assert loaded["params"]["head"]["none"].shape == (0, 3)
    assert isinstance(loaded["params"]["head"]["w"], jax.Array)
    assert len(jax.tree.leaves(loaded)) == len(jax.tree.leaves(expected))


def test_parameters_alone_into_a_dictionary_or_into_what_they_were(path: Path) -> None:
    expected = _state(24).params
    for like in ({"params": expected}, {"params": jax.eval_shape(lambda: expected)}):
        loaded = holdfast.load(path, parts=("params",), like=like)
        assert bits(loaded.state) == bits({"params": expected})
    alone = holdfast.load(path, parts=("params.head",)).state
    assert bits(alone) == bits({"params": {"head": expected["head"]}})
    whole = holdfast.load(path, like=_state(0))
    assert bits(whole.state) == bits(_state(24))
    assert isinstance(whole.state, Trained)


def test_only_the_parts_asked_for_are_read(root: Path) -> None:
    store = store_at(root, 1)
    store.save(1, {"params": jnp.arange(8.0), "opt": jnp.ones(4_000_000)}).result(30)
    store.close()
    found = next(entry for entry in only_checkpoint_folder(root.parent).entries() if isinstance(entry, Found))
    contents = contents_of(found)
    before = _bytes_read()
    values = contents.read({"params": jnp.zeros(8)})
    assert _bytes_read() - before < 1_000_000, "of the 16 MB that opt has"
    assert bits(values["params"]) == bits(jnp.arange(8.0))


def _bytes_read() -> int:
    """By this process, from files, also from the page cache."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


def test_sharded_parameters(path: Path) -> None:
    mesh = jax.make_mesh((1,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))  # type: ignore[no-untyped-call]
    like = {"params": {"head": {"w": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)}}}  # type: ignore[no-untyped-call]
    loaded = holdfast.load(path, parts=("params.head.w",), like=like).state["params"]["head"]["w"]
    assert loaded.sharding == sharding
    assert np.array_equal(loaded, np.arange(8.0) + 24)


def test_every_difference_is_named_and_nothing_happens_silently(path: Path) -> None:
    like = {"params": {"encoder": _state(0).params["encoder"][:2], "head": {"w": jnp.zeros(9)}, "extra": jnp.zeros(1)}}
    with pytest.raises(errors.StructureMismatch) as caught:
        holdfast.load(path, parts=("params",), like=like)
    for name in ("params.extra", "params.head.w", "params.head.none", "params.encoder.2.w"):
        assert name in str(caught.value)
    with pytest.raises(errors.StructureMismatch, match=r"opt\.0"):
        holdfast.load(path, like={"params": _state(0).params})
    with pytest.raises(errors.StructureMismatch, match="choose among key, opt, params, step"):
        holdfast.load(path, parts=("weights",))
    with pytest.raises(ValueError, match="parts"):
        holdfast.load(path, parts="params")


def test_leaves_that_may_be_new_or_dropped(path: Path) -> None:
    head = jnp.full(9, 0.25)
    like: Any = {"params": {"encoder": _state(0).params["encoder"], "head": {"w": head}}, "step": 0}
    changes: dict[str, Any] = {"new_leaves": ["params.head"], "dropped_leaves": ["params.head", "opt", "key"]}
    loaded = holdfast.load(path, like=like, **changes)
    assert bits(loaded.state["params"]["encoder"]) == bits(_state(24).params["encoder"])
    assert loaded.state["params"]["head"]["w"] is head
    assert loaded.new == ("params.head.w",)
    assert {"key", "params.head.w", "params.head.none"} <= set(loaded.dropped)
    like["params"]["head"]["w"] = jax.ShapeDtypeStruct((9,), jnp.float32)  # type: ignore[no-untyped-call]
    with pytest.raises(errors.StructureMismatch, match="real arrays"):
        holdfast.load(path, like=like, **changes)


def test_a_numpy_template_gives_numpy(path: Path) -> None:
    loaded = holdfast.load(path, parts=("params.head.w",), like={"params": {"head": {"w": np.zeros(8, np.float32)}}})
    value = loaded.state["params"]["head"]["w"]
    assert type(value) is np.ndarray
    assert np.array_equal(value, np.arange(8.0) + 24)


def test_listing_with_and_without_digests(path: Path) -> None:
    _damage(path, 2, 4)
    assert [c.status for c in holdfast.checkpoints(path)] == ["valid"] * 5
    deep = holdfast.checkpoints(path, run="char-lm", deep=True)
    assert [(c.attempt, c.step, c.valid) for c in deep][:2] == [(2, 4, False), (2, 3, True)]
    assert deep[1].metrics == {"loss": 0.3}
    assert deep[1].ref.digest == deep[1].digest != ""
    with pytest.raises(FileNotFoundError):
        holdfast.checkpoints(path / "none")


@pytest.mark.parametrize("chosen", [{}, {"step": 1}, {"best": ("loss", "min")}])
def test_a_reader_beside_a_fast_retention_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]
) -> None:
    root = tmp_path / "run"
    for attempt in (1, 2):
        store = store_at(root, attempt)
        store.save(1, {"w": jnp.full(8, float(attempt))}, CheckpointExtras(metrics={"loss": 1.0})).result(30)
        store.close()
    later, doomed = tmp_path / "later", [root / "1" / "1"]
    (root / "2" / "1").rename(later)
    real = verified_read.verify_and_read

    def read_while_retention_deletes(folder: Path, *arguments: Any, **options: Any) -> None:
        if later.exists():
            later.rename(root / "2" / "1")
        for folder_of_step in doomed:
            fs.discard_folder(folder_of_step)
        doomed.clear()
        real(folder, *arguments, **options)

    monkeypatch.setattr(verified_read, "verify_and_read", read_while_retention_deletes)
    loaded = holdfast.load(root, **chosen)
    assert (loaded.attempt, loaded.step, loaded.rejected) == (2, 1, ())
    assert loaded.state["w"].tolist() == [2.0] * 8
    doomed.append(root / "2" / "1")
    with pytest.raises(FileNotFoundError, match="found no checkpoint"):
        holdfast.load(root, **chosen)


def test_loading_writes_nothing(path: Path) -> None:
    def listing() -> list[tuple[str, int]]:
        return sorted((str(p), p.stat().st_mtime_ns) for p in path.rglob("*"))

    before = listing()
    holdfast.load(path)
    holdfast.checkpoints(path, deep=True)
    assert listing() == before


def test_keys_with_dots_come_back_as_they_were(tmp_path: Path) -> None:
    state = {"layer": jnp.ones(2), "layer.bias": jnp.zeros(2), "a.b": {"c.d": jnp.arange(3.0)}}
    store = store_at(tmp_path / "run", 1)
    store.save(1, state).result(30)
    store.close()
    loaded = holdfast.load(tmp_path / "run")
    assert jax.tree_util.tree_structure(loaded.state) == jax.tree_util.tree_structure(state)
    assert bits(loaded.state) == bits(state)


def test_names_of_plain_orbax_that_are_above_each_other_are_all_loaded(tmp_path: Path) -> None:
    """Plain Orbax stores names, not keys: ``layer.bias`` is a level below ``layer`` unless ``layer`` is a leaf."""
    state = {"layer": jnp.ones(2), "layer.bias": jnp.zeros(2), "other": {"w": jnp.arange(3.0)}}
    with ocp.CheckpointManager(tmp_path / "orbax") as manager:
        manager.save(1, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    holdfast.seal(tmp_path / "orbax")
    assert bits(holdfast.load(tmp_path / "orbax").state) == bits(state)
