"""Storage that is full, read-only, missing or slow: the save fails and says why, nothing else is harmed."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from holdfast import errors
from holdfast.distributed.coordination import LocalCoordination
from holdfast.store import UNPINNED, CheckpointExtras, Store, StoreSettings
from holdfast.store.format import fs
from holdfast.store.write import snapshot
from holdfast_contract.exits import ExitCode
from holdfast_contract.keys import PARTIAL_FILE
from holdfast_contract.manifest import Owner
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import QUICK, bits, small_state, store_at

IS_ROOT = os.geteuid() == 0


pytestmark = pytest.mark.usefixtures("no_fault_left")


def _require_untouched_and_going_on(store: Store, root: Path) -> None:
    """After a failed step 2: step 1 is there, step 2 left nothing, and step 3 works."""
    assert [r.step for r in RunFolder(root).candidates()] == [1]
    assert not (root / "1" / "2").exists()
    assert not list((root / "1").glob(".trash-*"))
    assert store.save(3, small_state(3)).result(30).step == 3
    store.close()
    restored = store_at(root, 2).restore(UNPINNED, small_state(0))
    assert restored is not None
    assert bits(restored.state) == bits(small_state(3))


NUMBERS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT, errno.EROFS)
STRIDE = 4
"""Each errno is met at every fourth operation, with the slow tests at every one."""


@pytest.mark.parametrize(
    ("number", "first"),
    [
        pytest.param(number, first, marks=[] if first == place % STRIDE else pytest.mark.slow)
        for place, number in enumerate(NUMBERS)
        for first in range(STRIDE)
    ],
)
def test_an_error_at_any_operation_fails_the_save_only(tmp_path: Path, number: int, first: int) -> None:
    operations = _operations_of_a_save(tmp_path / "dry" / "run")
    assert len(operations) > 25
    for index in range(first, len(operations) - 2, STRIDE):
        root = tmp_path / str(index) / "run"
        root.parent.mkdir()
        store = store_at(root, 1)
        store.save(1, small_state(1)).result(30)
        fired: list[str] = []
        fs.set_fault_hook(_failing_at(index, number, fired))
        handle = store.save(2, small_state(2))
        store.wait(30)
        fs.set_fault_hook(None)
        failure = handle.exception()
        if fired[0].startswith("before:remove") and fired[0].endswith(PARTIAL_FILE):
            assert failure is None, "the checkpoint is committed before the mark is removed"
            store.close()
            continue
        assert isinstance(failure, errors.SaveError), fired
        assert (failure.errno, failure.step, failure.rank) == (number, 2, 0)
        assert str(failure.path).startswith(str(root))
        assert os.strerror(number) in str(failure)
        _require_untouched_and_going_on(store, root)


def _operations_of_a_save(root: Path) -> list[str]:
    root.parent.mkdir()
    store = store_at(root, 1)
    store.save(1, small_state(1)).result(30)
    seen: list[str] = []
    fs.set_fault_hook(lambda operation, path: seen.append(f"{operation} {path}"))
    store.save(2, small_state(2)).result(30)
    fs.set_fault_hook(None)
    store.close()
    return [label for label in seen if label.startswith("before:")]


def _failing_at(index: int, number: int, fired: list[str]) -> fs.FaultHook:
    """Fail the ``index``-th operation once; says in ``fired`` which that was."""
    count = [0]

    def hook(operation: str, path: Path) -> None:
        if operation.startswith("before:"):
            count[0] += 1
            if count[0] == index + 1:
                fired.append(f"{operation} {path}")
                raise OSError(number, os.strerror(number), str(path))

    return hook


@pytest.mark.skipif(not IS_ROOT, reason="mounting a small file system takes root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)], check=False).returncode != 0:
        pytest.skip("this machine does not allow mounts")
    try:
        root = mount / "run"
        store = store_at(root, 1)
        store.save(1, small_state(1)).result(30)
        big = {"w": jax.device_put(np.ones(4 * 1024 * 1024, np.float32))}
        with pytest.raises(errors.SaveError) as caught:
            store.save(2, big).result(30)
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.exit_code is ExitCode.STORAGE
        _require_untouched_and_going_on(store, root)
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_file_size_limit_stops_native_writes_too(tmp_path: Path) -> None:
    root = tmp_path / "run"
    store = store_at(root, 1)
    store.save(1, small_state(1)).result(30)
    big = {"w": jax.device_put(np.ones(1024 * 1024, np.float32))}
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, hard))
    try:
        with pytest.raises(errors.SaveError) as caught:
            store.save(2, big).result(30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert caught.value.errno == errno.EFBIG
    _require_untouched_and_going_on(store, root)


def test_a_path_that_does_not_exist_is_found_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageUnusable, match=r"does not exist.*mount the volume") as caught:
        store_at(tmp_path / "missing" / "run", 1)
    assert caught.value.path == tmp_path / "missing"


def test_a_path_that_may_not_be_written_is_found_before_the_first_step(tmp_path: Path) -> None:
    def read_only(operation: str, path: Path) -> None:
        if operation == "before:mkdir":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    fs.set_fault_hook(read_only)
    with pytest.raises(errors.StorageUnusable, match="Read-only file system") as caught:
        store_at(tmp_path / "run", 1)
    assert caught.value.errno == errno.EROFS


def test_a_folder_removed_under_a_running_job(root: Path) -> None:
    store = store_at(root, 1)
    store.save(1, small_state(1)).result(30)
    shutil.rmtree(root)
    with pytest.raises((errors.SaveError, errors.Superseded)):
        store.save(2, small_state(2)).result(30)


def test_storage_that_hangs_ends_the_save_at_its_limit_and_training_goes_on(root: Path) -> None:
    released = threading.Event()
    settings = StoreSettings(save_seconds=0.5, settle_seconds=0.2)
    store = store_at(root, 1, settings=settings)

    def hanging(operation: str, path: Path) -> None:
        if operation == "before:write" and path.name == "process-0.bin":
            released.wait(20)

    fs.set_fault_hook(hanging)
    handle = store.save(1, small_state(1), CheckpointExtras(data=b"1"))
    with pytest.raises(errors.SaveTimeout):
        handle.result(10)
    fs.set_fault_hook(None)
    assert store.save(2, small_state(2), CheckpointExtras(data=b"2")).result(30).step == 2
    released.set()
    store.close()
    assert [r.step for r in RunFolder(root).candidates()] == [2], "the late writer may not commit what was given up"


def test_storage_that_is_slow_delays_the_checkpoint_not_the_loop(root: Path) -> None:
    """Storage does one operation per training step here."""
    step_function = jax.jit(lambda w: w * 2 + 1, donate_argnums=0)
    weights = jax.device_put(jnp.arange(1 << 10, dtype=jnp.float32))
    turns = threading.Semaphore(0)

    def slow(operation: str, path: Path) -> None:
        if operation.startswith("before:") and not turns.acquire(timeout=30):
            raise TimeoutError(f"{operation} {path}: the loop did not go on")

    store = store_at(root, 1)
    fs.set_fault_hook(slow)
    expected = np.array(weights)
    handle = store.save(1, {"w": weights})
    steps = 0
    while not handle.done():
        weights = step_function(weights)
        steps += 1
        turns.release()
        handle.wait(0.02)
    assert steps > 25, "the loop went on while each of the save's operations waited for its turn"
    second = store.save(2, {"w": weights})
    assert not second.done()
    turns.release(1000)
    assert second.result(30).step == 2
    store.close()
    fs.set_fault_hook(None)
    restored = store_at(root, 2).restore(handle.result(0), {"w": weights})
    assert restored is not None
    assert np.array_equal(restored.state["w"], expected)


def test_an_error_that_nobody_asked_for_is_raised_at_the_end(root: Path) -> None:
    store = store_at(root, 1)
    fs.set_fault_hook(_failing_at(8, errno.ENOSPC, []))
    store.save(1, small_state(1))
    store.wait(30)
    fs.set_fault_hook(None)
    with pytest.raises(errors.SaveError):
        store.close()


def test_a_snapshot_is_not_reached_by_later_donated_steps(root: Path) -> None:
    step_function = jax.jit(lambda w: w * 2 + 1, donate_argnums=0)
    weights = jax.device_put(jnp.arange(1 << 20, dtype=jnp.float32))
    store = store_at(root, 1)
    expected = {}
    for step in range(1, 5):
        expected[step] = np.array(weights)
        handle = store.save(step, {"w": weights})
        for _ in range(5):
            weights = step_function(weights)
        handle.result(30)
    store.close()
    for ref in RunFolder(root).candidates():
        restored = store_at(root, RunFolder(root).highest_attempt() + 1).restore(ref, {"w": weights})
        assert restored is not None
        assert np.array_equal(restored.state["w"], expected[ref.step])


def test_wrong_calls_are_refused_on_the_spot(root: Path) -> None:
    store = store_at(root, 1)
    store.save(3, small_state(3)).result(30)
    with pytest.raises(ValueError, match="step: found 3"):
        store.save(3, small_state(3))
    with pytest.raises(ValueError, match="step: found -1"):
        store.save(-1, small_state(1))
    with pytest.raises(errors.UnsupportedLeaf, match=r"\['name'\].*found str"):
        store.save(4, {"name": "a string"})
    with pytest.raises(errors.UnsupportedLeaf, match=r"which .* has too"):
        store.save(4, {"a.b": 1, "a": {"b": 2}})
    with pytest.raises(ValueError, match="attempt: found 0"):
        Store(RunFolder(root), attempt=0, owner=Owner("", "", "", 0), coordination=LocalCoordination(), settings=QUICK)
    store.close()


@pytest.mark.parametrize(
    ("change", "leaf", "expected", "found"),
    [
        ({"w": np.zeros((64, 64), np.int32)}, "['w']", "numpy int32", "array float32"),
        ({"w": jnp.zeros((64, 64), jnp.bfloat16)}, "['w']", "bfloat16", "float32"),
        ({"w": jnp.zeros((64, 4))}, "['w']", "[64,4]", "[64,64]"),
        ({"extra": 1}, "['extra']", "scalar int", "no such leaf"),
        ({"step": 1.0}, "['step']", "float", "int"),
        ({"table": None}, "['table']", "no such leaf", "int64[7]"),
    ],
)
def test_another_structure_is_an_error_with_path_and_remedy(
    root: Path, change: dict[str, object], leaf: str, expected: str, found: str
) -> None:
    store = store_at(root, 1)
    store.save(1, small_state(1)).result(30)
    with pytest.raises(errors.StructureMismatch) as caught:
        store.restore(UNPINNED, small_state(0) | change)
    assert caught.value.leaf == leaf
    assert expected in caught.value.expected
    assert found in caught.value.found
    assert caught.value.remedy
    store.close()


def test_the_way_of_accelerators_through_pinned_host_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that are not on CPU are copied to pinned host memory, which the CPU backend has as well."""
    monkeypatch.setattr(snapshot, "on_cpu", lambda _: False)
    step_function = jax.jit(lambda w: w * 2 + 1, donate_argnums=0)
    weights = jax.device_put(jnp.arange(1 << 18, dtype=jnp.float32))
    expected = np.array(weights)
    store = store_at(root, 1)
    handle = store.save(1, {"w": weights, "key": jax.random.key(3)})
    for _ in range(5):
        weights = step_function(weights)
    handle.result(30)
    restored = store.restore(UNPINNED, {"w": weights, "key": jax.random.key(0)})
    store.close()
    assert restored is not None
    assert np.array_equal(restored.state["w"], expected)
    assert restored.state["w"].sharding == weights.sharding
    assert bits(restored.state["key"]) == bits(jax.random.key(3))


def test_memory_that_cannot_be_had_ahead_of_the_first_save_is_no_error_yet(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(root, 1)
    store.prepare({"w": np.broadcast_to(np.float32(0), (1 << 48,))})  # a petabyte, in four bytes
    assert store.save(1, small_state(1)).result(30).step == 1
    assert "no memory yet for the copy that a save makes, 1125899906842624 bytes" in caplog.text
