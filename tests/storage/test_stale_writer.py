"""A process of an older attempt, overtaken at every operation of its save: it harms nothing, wherever it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.policies.keep_rules import KeepBest
from holdfast.store import UNPINNED, CheckpointExtras, Store
from holdfast.store.format import fs
from holdfast_contract.manifest import CheckpointRef
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import bits, small_state, store_at

pytestmark = pytest.mark.usefixtures("no_fault_left")


def operations_of_a_save(root: Path) -> int:
    store = store_at(root, 1)
    seen: list[str] = []
    fs.set_fault_hook(lambda operation, _: seen.append(operation) if operation.startswith("before:") else None)
    store.save(5, small_state(5)).result(30)
    fs.set_fault_hook(None)
    store.close()
    return len(seen)


def overtaken_at(root: Path, index: int) -> tuple[Exception | None, CheckpointRef]:
    """Attempt 1 saves step 5; before its ``index``-th operation attempt 2 begins, and saves step 5 as well."""
    old = store_at(root, 1)
    new: list[Store] = []
    count = iter(range(index + 1))

    def hook(operation: str, _: Path) -> None:
        if operation.startswith("before:") and next(count, None) == index:
            fs.set_fault_hook(None)
            new.append(store_at(root, 2))

    fs.set_fault_hook(hook)
    handle = old.save(5, small_state(5))
    assert handle.wait(30)
    fs.set_fault_hook(None)
    successor = new[0] if new else store_at(root, 2)
    ref = successor.save(5, small_state(55)).result(30)
    successor.close()
    return handle.exception(), ref


@pytest.mark.timeout(300)
def test_overtaken_at_every_operation(tmp_path: Path) -> None:
    (tmp_path / "dry").mkdir()
    count = operations_of_a_save(tmp_path / "dry" / "run")
    assert count > 20
    committed = 0
    for index in range(count):
        root = tmp_path / str(index) / "run"
        root.parent.mkdir()
        error, ref = overtaken_at(root, index)
        found = RunFolder(root).candidates()
        if error is None:
            committed += 1
            assert found[0] == ref
            assert [(r.attempt, r.step) for r in found] == [(2, 5), (1, 5)]
        else:
            assert isinstance(error, errors.Superseded), index
            assert found == (ref,)
        restored = store_at(root, 3).restore(UNPINNED, small_state(0))
        assert restored is not None
        assert (restored.ref, restored.rejected) == (ref, ())
        assert bits(restored.state) == bits(small_state(55)), "the newer attempt's, whatever the older one did"
    assert 0 < committed < count / 2


@pytest.mark.parametrize("losses", [[3.0, 4.0, 5.0, 6.0, 7.0], [3.0, 2.0, float("nan"), 1.0, float("nan"), 2.5]])
def test_a_metric_that_gets_worse_or_is_no_number_never_costs_the_newest_nor_the_best(
    tmp_path: Path, losses: list[float]
) -> None:
    for rule in (KeepBest(2), holdfast.keep(latest=1, best=1)):
        root = tmp_path / str(hash(rule)) / "run"
        root.parent.mkdir()
        store = store_at(root, 1, retention=rule)
        for step, loss in enumerate(losses):
            ref = store.save(step, small_state(step), CheckpointExtras(metrics={"loss": loss})).result(30)
            store.close()  # waits for the deletion
            kept = [r.step for r in RunFolder(root).candidates()]
            assert kept[0] == ref.step, "the newest was deleted on arrival"
            finite = [s for s in range(step + 1) if losses[s] == losses[s]]
            assert min(finite, key=lambda s: losses[s]) in kept
            assert len(kept) <= 4
