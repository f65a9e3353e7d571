"""Checkpoints read without TensorStore: the same bits as Orbax's reader gives, from every layout, or Orbax itself."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import orbax.checkpoint as ocp
import pytest
import tensorstore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import errors
from holdfast.store import UNPINNED
from holdfast.store.format import digests
from holdfast.store.format.ocdbt import decode
from holdfast.store.format.ocdbt.arrays import StoredArray
from holdfast.store.format.ocdbt.decode import Extent, NotUnderstoodError, Value
from holdfast.store.format.ocdbt.index import read_index
from holdfast.store.read import hashing_reader, read_plan, verified_read
from holdfast.store.read.candidates import NEWEST, Candidates
from holdfast_contract import manifest, runfolder
from holdfast_contract.keys import MANIFEST_FILE
from holdfast_contract.runfolder import Found, RunFolder
from tests.support.storage import reader_tasks, reshard_tasks
from tests.support.storage.reader_tasks import placements, reading, restored
from tests.support.storage.reshard_tasks import Layout
from tests.support.storage.states import QUICK, bits, state_of, store_at
from tests.support.storage.world import World

DTYPES = ["bool", "int8", "uint8", "int16", "uint32", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn"]
LAYOUTS: list[Layout] = [((4, 1), ("a", None)), ((2, 2), ("b", "a")), ((1, 4), (None, "b")), ((4, 1), (None, None))]
ALONE: Layout = ((1, 1), (None, None))


def _reader_of(folder: Path) -> Any:
    def read(path: str, offset: int, length: int | None) -> bytes:
        data = (folder / path).read_bytes()
        return data[offset:] if length is None else data[offset : offset + length]

    return read


# The index.


@given(
    values=st.dictionaries(st.text(max_size=12).filter(bool), st.binary(max_size=60), min_size=1, max_size=60),
    compressed=st.booleans(),
    node_bytes=st.sampled_from([200, 1000, 100_000]),
    later=st.dictionaries(st.text(max_size=3).filter(bool), st.binary(max_size=60), max_size=5),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_index_holds_what_tensorstore_says(
    tmp_path: Path, values: dict[str, bytes], compressed: bool, node_bytes: int, later: dict[str, bytes]
) -> None:
    folder = tmp_path / "kv"
    shutil.rmtree(folder, ignore_errors=True)
    config = {
        "max_decoded_node_bytes": node_bytes,
        "max_inline_value_bytes": 20,
        "compression": {"id": "zstd"} if compressed else None,
    }
    spec = {"driver": "ocdbt", "base": f"file://{folder}/", "config": config}
    store = tensorstore.KvStore.open(spec).result()
    for batch in (values, later):
        with tensorstore.Transaction() as transaction:
            for key, value in batch.items():
                store.with_transaction(transaction)[key] = value
    read = _reader_of(folder)
    found = {k: v if isinstance(v, bytes) else read(v.path, v.offset, v.length) for k, v in read_index(read).items()}
    assert found == values | later


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder with step 4 of the mixed state."""
    root = tmp_path_factory.mktemp("own") / "run"
    store = store_at(root, 1)
    store.save(4, state_of(4)).result(30)
    store.close()
    return root


@pytest.fixture
def run(committed: Path, tmp_path: Path) -> Path:
    shutil.copytree(committed, tmp_path / "copy" / committed.name)
    return tmp_path / "copy" / committed.name


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_index_bytes_are_not_understood_or_read_as_something(committed: Path, data: st.DataObject) -> None:
    """Whatever the bytes are: no other error, no endless loop, no memory beyond their own size."""
    folder = committed / "1" / "4" / "state"
    ref = decode.NodeRef(Extent("manifest.ocdbt", 0, 0), "")
    good = _plain_node(folder)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=8)) + good[at + data.draw(st.integers(0, 8)) :]
    for attempt in (lambda: decode.decode_node(bad, ref), lambda: decode.decode_manifest(bad)):
        try:
            attempt()
        except NotUnderstoodError:
            continue


def _plain_node(folder: Path) -> bytes:
    """The same index in one node that is not compressed."""
    kept = folder.parents[2] / "plain-node"
    spec = {"driver": "ocdbt", "base": f"file://{kept}/", "config": {"compression": None}}
    if not kept.exists():
        store = tensorstore.KvStore.open(spec).result()
        with tensorstore.Transaction() as transaction:
            for key, value in read_index(_reader_of(folder)).items():
                store.with_transaction(transaction)[key] = value if isinstance(value, bytes) else b"x" * 2000
    root = decode.decode_manifest((kept / "manifest.ocdbt").read_bytes())
    assert root is not None
    extent = root.extent
    return (kept / extent.path).read_bytes()[extent.offset : extent.offset + extent.length]


# The same bits.


def _same_both_ways(root: Path, state: Any, wanted: Any = None) -> None:
    store = store_at(root, 1)
    store.save(1, state).result(30)
    store.close()
    own = restored(root, 2, state if wanted is None else wanted, by_orbax=False)
    other = restored(root, 3, state if wanted is None else wanted, by_orbax=True)
    assert bits(own) == bits(other) == bits(state)
    assert placements(own) == placements(other)


def test_every_dtype_kind_and_rank(root: Path) -> None:
    arrays = {
        f"{dtype}-{len(shape)}": jnp.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        for dtype in DTYPES
        for shape in ((), (5,), (3, 2), (2, 1, 3), (3000,), (0, 3))
    }
    others = {
        "numpy": {d: np.arange(600).astype(jnp.dtype(d)).reshape(2, 300) for d in [*DTYPES, "int64", "float64"]},
        "fortran": np.asfortranarray(np.arange(6000.0).reshape(2, 3000)),
        "scalar": np.float64(1) / 3,
        "int": 2**62,
        "float": float("nan"),
        "flag": True,
        "keys": [jax.random.key(3), jax.random.split(jax.random.key(3, impl="rbg"), 6)],
        "ü/x.y": jnp.ones(3),
        "none": None,
    }
    _same_both_ways(root, arrays | others)


def test_a_state_that_is_one_array(root: Path) -> None:
    _same_both_ways(root, jnp.arange(9000.0))


def test_four_thousand_leaves(root: Path) -> None:
    _same_both_ways(root, {f"layer{n}": jnp.full((4,), n) for n in range(4000)})


def test_arrays_are_as_they_were_asked_for(root: Path) -> None:
    params = {"w": jnp.ones((300, 40)), "b": jnp.ones(40)}
    state = {"params": params, "opt": optax.adam(1e-3).init(params)}
    _same_both_ways(root, state, jax.eval_shape(lambda: state))


def test_one_process_fills_another_layout(world: World, root: Path) -> None:
    for number, layout in enumerate(LAYOUTS):
        folder = root.with_name(f"layout-{number}")
        world.call("tests.support.storage.reshard_tasks:save_laid_out", folder, 1, layout)
        for attempt, other in enumerate((LAYOUTS * 2)[number : number + 2], start=1):
            task = "tests.support.storage.reader_tasks:both_ways"
            assert world.call(task, folder, 2 * attempt, other) == [(True, True)] * 2, (layout, other)


def test_two_processes_read_the_mixed_state_alike(world: World, root: Path) -> None:
    world.call("tests.support.storage.tasks:save_steps", root, 1, [3])
    assert world.call("tests.support.storage.reader_tasks:both_ways", root, 2, None) == [(True, True)] * 2


def test_what_two_processes_wrote_is_read_by_one(world: World, root: Path) -> None:
    world.call("tests.support.storage.reshard_tasks:save_laid_out", root, 1, LAYOUTS[1])
    with reading(by_orbax=False) as readers:
        assert reshard_tasks.restore_laid_out(None, root, 2, ALONE) == (True, True)
    assert readers == ["holdfast"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_donating_what_was_restored_is_safe(world: World, root: Path, layout: Layout) -> None:
    assert world.call("tests.support.storage.reader_tasks:donate_after_restore", root, 1, layout) == [True, True]
    assert reader_tasks.donate_after_restore(None, root.with_name("alone"), 1, ALONE)


def test_numpy_leaves_are_the_callers_own(root: Path) -> None:
    store = store_at(root, 1)
    store.save(1, {"table": np.arange(5000), "w": jnp.ones(3)}).result(30)
    store.close()
    one, two = (restored(root, n, {"table": np.zeros(5000, int), "w": jnp.ones(3)}, by_orbax=False) for n in (2, 3))
    one["table"][:] = -1
    assert np.array_equal(two["table"], np.arange(5000))


# Parts of arrays.


@st.composite
def _grids(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[tuple[int, int], ...]]]:
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    chunks = tuple(draw(st.integers(1, size)) for size in shape)

    def part(size: int) -> tuple[int, int]:
        start = draw(st.integers(0, size - 1))
        return start, draw(st.integers(start + 1, size))

    boxes = [tuple(part(size) for size in shape) for _ in range(draw(st.integers(1, 3)))]
    return shape, chunks, list(dict.fromkeys(boxes))


@given(grid=_grids(), slab_bytes=st.sampled_from([1, 16, 1 << 20]), block_bytes=st.sampled_from([1, 7, 64, 1 << 20]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_part_of_any_grid_of_chunks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    grid: tuple[tuple[int, ...], tuple[int, ...], list[tuple[tuple[int, int], ...]]],
    slab_bytes: int,
    block_bytes: int,
) -> None:
    shape, chunk_shape, boxes = grid
    monkeypatch.setattr(read_plan, "_SLAB_BYTES", slab_bytes)
    monkeypatch.setattr(hashing_reader, "_BLOCK_BYTES", block_bytes)
    array = np.arange(np.prod(shape), dtype=np.int16).reshape(shape) + 1
    index, size = _write_chunks(tmp_path / "data", array, chunk_shape)
    stored = StoredArray("w", shape, array.dtype, chunk_shape, index)
    hosts = {box: np.zeros(tuple(b - a for a, b in box), np.int16) for box in boxes}
    spans: dict[str, list[hashing_reader.ReadSpan]] = {}
    read_plan._place(read_plan._Leaf(array, hosts, stored), spans)
    found = sorted(spans.get("data", []), key=lambda piece: piece.offset)
    for whole in (True, False):
        for host in hosts.values():
            host[:] = 0
        digest = hashing_reader.read_spans(tmp_path / "data", size, found, threads=3, whole=whole)
        assert digest == (digests.hash_file(tmp_path / "data")[1] if whole else "")
        for box, host in hosts.items():
            assert np.array_equal(host, array[tuple(slice(a, b) for a, b in box)])


def _write_chunks(
    path: Path, array: np.ndarray[Any, Any], chunk_shape: tuple[int, ...]
) -> tuple[Mapping[str, Value], int]:
    """Every chunk as zarr stores it, one after the other with a gap; edge chunks are filled up."""
    index: dict[str, Value] = {}
    data = bytearray(b"gap")
    counts = tuple(-(-size // chunk) for size, chunk in zip(array.shape, chunk_shape, strict=True))
    for place in np.ndindex(counts):
        parts = [slice(i * c, (i + 1) * c) for i, c in zip(place, chunk_shape, strict=True)]
        inside = array[tuple(parts)]
        chunk = np.full(chunk_shape, -9, array.dtype)
        chunk[tuple(slice(0, size) for size in inside.shape)] = inside
        index["w/" + ".".join(map(str, place))] = Extent("data", len(data), chunk.nbytes)
        data += chunk.tobytes() + b"gap"
    path.write_bytes(data)
    return index, len(data)


# What is left to Orbax, and what is refused.


def _exchange_state(run: Path, **handler: Any) -> Any:
    """Step 4 as if its state had been written by another handler; its manifest is right."""
    folder = run / "1" / "4"
    wanted = {"w": jnp.arange(4096.0).reshape(64, 64), "step": jnp.int32(5)}
    shutil.rmtree(run)
    store = store_at(run, 1)
    store.save(4, wanted).result(30)
    store.close()
    shutil.rmtree(folder / "state")
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**handler)) as writer:
        writer.save((folder / "state").absolute(), args=ocp.args.PyTreeSave(wanted))
    found = RunFolder(run).survey().found[0]
    paths = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST_FILE]
    files = digests.describe_files(folder, sorted(paths), threads=2)
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes(dataclasses.replace(found.manifest, files=files)))
    return wanted


@pytest.mark.parametrize(
    "handler", [{"use_compression": True}, {"use_zarr3": True}, {"use_ocdbt": False}], ids=["zstd", "zarr3", "files"]
)
def test_a_layout_that_is_not_understood_is_left_to_orbax(run: Path, handler: dict[str, Any]) -> None:
    wanted = _exchange_state(run, **handler)
    with reading(by_orbax=False) as readers:
        found = store_at(run, 2).restore(UNPINNED, wanted)
    assert found is not None
    assert readers == ["none", "orbax"]
    assert bits(found.state) == bits(wanted)


def test_an_index_that_changes_after_it_was_read_is_not_used(committed: Path) -> None:
    folder = committed / "1" / "4" / "state"
    plan = read_plan.plan(_reader_of(folder), state_of(0))
    for path, spans in plan.spans.items():
        hashing_reader.read_spans(folder / path, (folder / path).stat().st_size, spans, threads=1, whole=True)
    assert bits(plan.state()) == bits(state_of(4))
    plan.parsed[-1][1][3] ^= 1
    with pytest.raises(NotUnderstoodError, match="first"):
        plan.state()


def test_nothing_is_handed_out_of_what_does_not_have_its_digest(root: Path) -> None:
    """A bit that changes after sizes and index were looked at, in the midst of a large array."""
    store = store_at(root, 1)
    for step in (1, 2):
        store.save(step, {"w": jnp.arange(3_000_000.0) + step}).result(30)
    store.close()
    entries = RunFolder(root).survey().found[0].manifest.files
    large = max(entries, key=lambda entry: entry.size)
    with (root / "1" / "2" / large.path).open("r+b") as file:
        file.seek(large.size // 2)
        byte = file.read(1)
        file.seek(large.size // 2)
        file.write(bytes([byte[0] ^ 1]))
    found = store_at(root, 2).restore(UNPINNED, {"w": jnp.zeros(3_000_000)})
    assert found is not None
    assert np.array_equal(found.state["w"], jnp.arange(3_000_000.0) + 1)
    assert [r.reason.split(":")[0] for r in found.rejected] == [large.path]


def test_a_read_that_fails_once_is_repeated(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = hashing_reader.fill, [errno.EIO, errno.ESTALE]

    def failing(fd: int, views: Any, offset: int, path: Path) -> None:
        real(fd, views, offset, path)
        if left:
            number = left.pop()
            raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(hashing_reader, "fill", failing)
    assert bits(restored(run, 2, state_of(0), by_orbax=False)) == bits(state_of(4))
    assert not left
    monkeypatch.setattr(
        hashing_reader, "fill", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "no answer", "there"))
    )
    with pytest.raises(errors.StorageError, match="no answer"):
        store_at(run, 3).restore(UNPINNED, state_of(0))


def test_a_file_that_shrinks_while_it_is_read_is_refused(run: Path) -> None:
    folder = run / "1" / "4"
    plan = verified_read.plan_state(folder, RunFolder(run).survey().found[0].manifest.files, state_of(0))
    assert plan is not None
    path = next(iter(plan.spans))
    with pytest.raises(EOFError, match="ends"):
        hashing_reader.read_spans(folder / "state" / path, 10**6, plan.spans[path], threads=2, whole=True)


@pytest.mark.parametrize("fail_at", [1, 2])
def test_a_listing_that_fails_once_loses_no_candidate(run: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int) -> None:
    """What a listing had not reached when storage did not answer is not "nothing there": the run would begin anew."""
    store = store_at(run, 2)
    store.save(9, state_of(9)).result(30)
    store.close()
    real, calls = runfolder.read_regular_file, [0]

    def failing(path: Path, max_bytes: int) -> bytes | None:
        calls[0] += path.name == MANIFEST_FILE
        if path.name == MANIFEST_FILE and calls[0] == fail_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, max_bytes)

    monkeypatch.setattr(runfolder, "read_regular_file", failing)
    candidates = Candidates(RunFolder(run), 9, QUICK)
    found = [entry.ref for entry in candidates.in_order(UNPINNED, NEWEST) if isinstance(entry, Found)]
    assert [(ref.attempt, ref.step) for ref in found] == [(2, 9), (1, 4)]
