"""What our own writer stores is a plain Orbax checkpoint, to the bit, for whatever may be in a state."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.store import UNPINNED, StoreSettings
from holdfast.store.write import direct_io
from holdfast.store.write.arena import PAGE_BYTES, Arena
from holdfast_contract.runfolder import RunFolder
from tests.support.storage import world as storage_world
from tests.support.storage import writer_tasks
from tests.support.storage.states import bits, store_at
from tests.support.storage.world import World
from tests.support.storage.writer_tasks import JAX_DTYPES, NUMPY_DTYPES, SPLITS, Drawn, build

TASKS = "tests.support.storage.writer_tasks"
SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 8]), max_size=3).map(tuple) | st.sampled_from([(0,), (2, 0)])
DRAWN = (
    st.builds(Drawn, st.just("array"), st.sampled_from(JAX_DTYPES), SHAPES, st.sampled_from(SPLITS))
    | st.builds(Drawn, st.just("numpy"), st.sampled_from(NUMPY_DTYPES), SHAPES, st.just(()))
    | st.builds(
        Drawn, st.just("key"), st.just(""), st.sampled_from([(), (2,), (8,), (4, 8)]), st.sampled_from(SPLITS[:4])
    )
    | st.builds(Drawn, st.just("scalar"), st.sampled_from(["bool", "int64", "float64"]), st.just(()), st.just(()))
)
STATES = st.dictionaries(st.sampled_from(["a", "b.c", "d/e", "é", "0", "layer_10", "layer_9"]), DRAWN, max_size=6)
EVERYTHING = {
    f"{kind} {dtype} {number}": Drawn(kind, dtype, shape, split)
    for kind, dtypes in (("array", JAX_DTYPES), ("numpy", NUMPY_DTYPES))
    for dtype in dtypes
    for number, (shape, split) in enumerate(itertools.product([(), (8,), (4, 8)], SPLITS[1:6:2]))
} | {f"key {n}": Drawn("key", "", (8,), split) for n, split in enumerate(SPLITS[:5])}

KNOWN_TO_ORBAX = {
    name: leaf
    for name, leaf in EVERYTHING.items()
    if leaf.kind != "numpy"
    or leaf.shape
    or ((d := writer_tasks.dtype_of(leaf.dtype)).isbuiltin == 1 and d.kind in "iuf")
}
"""It refuses most numpy scalars that Python has no number for."""


@pytest.fixture(scope="module")
def eight() -> Iterator[World]:
    """One process with eight devices."""
    with storage_world.world(1, devices=8) as started:
        yield started


@settings(max_examples=25)
@given(STATES)
def test_any_state_over_eight_devices_is_read_by_everybody(eight: World, drawn: dict[str, Drawn]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        assert eight.call(f"{TASKS}:save", root, 1, drawn, "direct") == ["direct"]
        (equal,) = eight.call(f"{TASKS}:restore", root, 2, drawn)
        assert equal == {"store": [], "PyTreeCheckpointer": [], "StandardCheckpointer": [], "v1": []}


@settings(max_examples=15)
@given(STATES)
def test_any_state_over_two_processes(world: World, drawn: dict[str, Drawn]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        assert world.call(f"{TASKS}:save", root, 1, drawn, "direct") == ["direct"] * 2
        assert world.call(f"{TASKS}:restore", root, 2, drawn) == [{"store": []}] * 2


def test_every_dtype_and_sharding_at_once(eight: World, world: World, tmp_path: Path) -> None:
    for number, each in enumerate((eight, world)):
        root = tmp_path / f"{number}" / "run"
        root.parent.mkdir()
        assert set(each.call(f"{TASKS}:save", root, 1, EVERYTHING, "direct")) == {"direct"}
        for equal in each.call(f"{TASKS}:restore", root, 2, EVERYTHING):
            assert not any(equal.values()), equal


def test_the_small_files_say_what_orbax_says(eight: World, world: World, tmp_path: Path) -> None:
    leaves = list(KNOWN_TO_ORBAX.items())  # not all: Orbax takes long per leaf
    for number, (each, drawn) in enumerate(((eight, dict(leaves[::4])), (world, dict(leaves[1::11])))):
        root = tmp_path / f"{number}" / "run"
        root.parent.mkdir()
        told = []
        for writer in ("direct", "orbax"):
            saved = root.with_name(writer)
            assert set(each.call(f"{TASKS}:save", saved, 1, drawn, writer)) == {writer}
            told.append(writer_tasks.files_of(saved / "1/1/state"))
        for what, found in told[0].items():
            assert found == told[1][what], what


def test_a_state_that_is_one_array_or_one_number(root: Path) -> None:
    store = store_at(root, 1)
    for step, state in enumerate((jnp.arange(5.0), 3, [np.float64(0.5)]), start=1):
        store.save(step, state).result(30)
        folder = root / f"1/{step}/state"
        assert writer_tasks.writer_of(folder) == "direct"
        restored = store.restore(UNPINNED, state)
        assert restored is not None
        assert bits(restored.state) == bits(state)
        assert not any(writer_tasks.read_plainly(folder, state).values())
    store.close()


def test_replicated_arrays_are_written_once_and_by_all_processes(world: World, root: Path) -> None:
    sizes = world.call(f"{TASKS}:bytes_by_process", root, 8)[0]
    assert sizes == [4 << 20, 4 << 20]


def test_processes_that_save_different_states_are_told(world: World, root: Path) -> None:
    for said in world.call(f"{TASKS}:save_other_shapes", root):
        assert "other leaves, shapes, dtypes or shardings than the state of process 0" in said
    assert RunFolder(root).candidates() == ()


@pytest.mark.parametrize(
    "state",
    [
        {"w": jnp.ones(8, jnp.int4), "b": jnp.arange(3)},
    ],
)
def test_what_raw_chunks_cannot_hold_is_left_to_orbax(root: Path, state: Any) -> None:
    store = store_at(root, 1)
    store.save(1, state).result(30)
    assert writer_tasks.writer_of(root / "1/1/state") == "orbax"
    restored = store.restore(UNPINNED, state)
    assert restored is not None
    assert bits(restored.state) == bits(state)
    store.close()


def test_a_state_that_grows_changes_and_shrinks_between_saves(root: Path) -> None:
    store = store_at(root, 1)
    states: list[Any] = [
        {"w": jnp.arange(10.0), "n": 1},
        {"w": jnp.arange(100_000.0), "n": 2**40},
        {"w": jnp.arange(10), "n": 2},
        {"w": {"x": jnp.arange(10.0)}, "n": 2**63},
    ]
    for step, state in enumerate(states, start=1):
        store.save(step, state).result(30)
        assert not any(writer_tasks.read_plainly(root / f"1/{step}/state", state).values())
    store.close()


def test_a_writer_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=r"writer: found 'fast', allowed: 'direct' \| 'orbax'"):
        StoreSettings(writer="fast")  # type: ignore[arg-type]


# The file itself.


@pytest.mark.parametrize("nbytes", [1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, direct_io.BLOCK_BYTES * 2 + 5])
@pytest.mark.parametrize("where", ["disk", "shared memory"])
def test_a_file_is_written_whole_whatever_its_length(tmp_path: Path, nbytes: int, where: str) -> None:
    memory = Arena().hold(nbytes)
    memory[:] = np.random.default_rng(nbytes).integers(0, 256, memory.nbytes, np.uint8)
    expected = memory[:nbytes].tobytes()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if where == "shared memory" else tmp_path) as folder:
        path = Path(folder) / "data"
        written = direct_io.write_file(path, direct_io.blocks_of(memory, nbytes), nbytes)
        assert path.read_bytes() == expected
    assert (written.nbytes, written.digest) == (nbytes, xxhash.xxh3_128_hexdigest(expected))


@pytest.mark.parametrize("moment", ["opening", "writing"])
def test_where_direct_io_is_refused_it_goes_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    real_open, real_write = os.open, os.pwrite
    refused = []

    def opened(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT and moment == "opening":
            refused.append(path)
            os.close(real_open(path, flags & ~os.O_DIRECT, *rest))  # as Linux: made, then refused
            raise OSError(errno.EINVAL, "refused")
        return real_open(path, flags, *rest)

    def wrote(fd: int, data: Any, offset: int) -> int:
        if moment == "writing" and not refused:
            refused.append(fd)
            raise OSError(errno.EINVAL, "refused")
        return real_write(fd, data, offset)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "pwrite", wrote)
    monkeypatch.setattr(direct_io, "_WINDOW_BYTES", 10_000)
    memory = Arena().hold(50_000)
    memory[:] = np.arange(memory.nbytes, dtype=np.uint64).astype(np.uint8)
    written = direct_io.write_file(tmp_path / "data", direct_io.blocks_of(memory, 49_999), 49_999)
    assert refused
    assert not written.direct
    assert (tmp_path / "data").read_bytes() == memory[:49_999].tobytes()


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3000)), max_size=12))
def test_parts_with_gaps_are_gathered_in_place(gaps_and_sizes: list[tuple[int, int]]) -> None:
    random = np.random.default_rng(1)
    expected, parts = bytearray(), []
    for gap, size in gaps_and_sizes:
        part = random.integers(0, 256, size, np.uint8)
        expected += bytes(gap)
        parts.append((len(expected), part))
        expected += part.tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_io, "BLOCK_BYTES", PAGE_BYTES)
        blocks = [block.tobytes() for block in direct_io.gathered_blocks(parts, len(expected))]
    assert all(len(block) % PAGE_BYTES == 0 for block in blocks)
    joined = b"".join(blocks)
    assert len(joined) - len(expected) < PAGE_BYTES
    for at, part in parts:
        assert joined[at : at + part.nbytes] == part.tobytes()


def test_the_arena_is_faulted_in_once_and_keeps_its_pages() -> None:
    arena = Arena()
    first = arena.hold(3 << 20)
    assert first.ctypes.data % PAGE_BYTES == 0
    assert arena.hold(1 << 20).ctypes.data == first.ctypes.data
    assert arena.bytes == 3 << 20
    assert arena.hold(5 << 20).nbytes == 5 << 20


def test_the_arena_copies_large_and_small_arrays_of_any_order() -> None:
    random = np.random.default_rng(2)
    sources = [
        random.random((1500, 1400)),  # several stripes
        np.asfortranarray(random.random((1500, 1400))),
        random.random(3).astype(np.float32),
        np.float16(0.5),
    ]
    targets = [np.zeros(np.shape(source), np.asarray(source).dtype) for source in sources]
    Arena().copy([(target, np.asarray(source)) for target, source in zip(targets, sources, strict=True)])
    for target, source in zip(targets, sources, strict=True):
        assert np.array_equal(target, source)


def test_build_depends_on_its_seed() -> None:
    drawn = {"a": Drawn("numpy", "float32", (4,), ())}
    assert bits(build(drawn, 1)) == bits(build(drawn, 1)) != bits(build(drawn, 2))


def test_a_state_without_numbers_is_left_to_orbax(root: Path) -> None:
    store = store_at(root, 1)
    store.save(1, {"empty": jnp.zeros((0, 2)), "n": None}).result(30)
    restored = store.restore(UNPINNED, {"empty": jnp.zeros((0, 2)), "n": None})
    store.close()
    assert restored is not None
    assert restored.state["empty"].shape == (0, 2)


def test_numbers_of_the_other_byte_order_are_stored_in_this_ones(root: Path) -> None:
    store = store_at(root, 1)
    store.save(1, {"swapped": np.arange(4, dtype=">f8")}).result(30)
    store.close()
    loaded = writer_tasks.ocp.PyTreeCheckpointer().restore(root / "1/1/state")
    assert loaded["swapped"].tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("writer", ["direct", "orbax"])
def test_the_writer_is_chosen_by_session_and_checkpointer(tmp_path: Path, writer: Any) -> None:
    with holdfast.session(tmp_path, run="s", every=holdfast.only_at_end(), writer=writer) as run:
        state, _ = run.restore(lambda: {"w": jnp.zeros(3)})
        for step in run.steps(until=1):
            run.commit(step, state)
    assert writer_tasks.writer_of(tmp_path / "s/1/1/state") == writer
    with holdfast.Checkpointer(tmp_path / "c", {"w": jnp.zeros(3)}, writer=writer) as checkpointer:
        checkpointer.save(1, model={"w": jnp.ones(3)})
    (folder,) = (tmp_path / "c").glob("**/1/state")
    assert writer_tasks.writer_of(folder) == writer


def test_another_writer_is_refused_by_session_and_checkpointer(tmp_path: Path) -> None:
    for make in (
        lambda: holdfast.session(tmp_path, writer="fast"),
        lambda: holdfast.Checkpointer(tmp_path, {}, writer="x"),
    ):
        with pytest.raises(ValueError, match="writer: found"):
            make()  # type: ignore[no-untyped-call]


def test_a_training_that_saves_and_goes_on_imports_neither_orbax_nor_tensorstore(root: Path) -> None:
    """Half a second of every restart otherwise."""
    program = f"""
import sys
import jax.numpy as jnp
import holdfast

for until in (2, 4):
    with holdfast.session({str(root)!r}, run="run", every=holdfast.every_steps(1)) as run:
        state, _ = run.restore(lambda: {{"w": jnp.zeros(8)}})
        for step in run.steps(until):
            run.commit(step, state)
    print(run.newest.step, sorted({{"orbax", "tensorstore"}} & {{name.partition(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["2 []", "4 []"], done.stderr
