"""SIGKILL at every operation on storage: what was committed stays, and a half-written save is never seen.

A kill loses nothing that a system call has written, so these tests do not speak of power loss; what stands against
that is the order of fsyncs, asserted by the last test here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store import UNPINNED, CheckpointExtras
from holdfast_contract.keys import MANIFEST_FILE, PARTIAL_FILE, TRASH_PREFIX
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.killer import Killer
from tests.support.storage.states import bits, small_state, store_at

_RANDOM_NAME = re.compile(r"[0-9a-f]{32}|[0-9]+-[0-9]+$")


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    started = Killer()
    yield started
    started.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which attempt 1 committed step 1."""
    root = tmp_path_factory.mktemp("saved") / "char-lm"
    store = store_at(root, 1)
    store.save(1, small_state(1), CheckpointExtras(data=b"1")).result(30)
    store.close()
    return root


def _copy(saved: Path, folder: Path) -> Path:
    root = folder / saved.name
    shutil.copytree(saved, root)
    return root


def _require_sound(root: Path, *, oldest_allowed: int) -> int:
    """What a new attempt restores: a committed step, bit for bit, without refusals; leftovers are gone. The step."""
    before = RunFolder(root).survey()
    assert before.rejected == ()
    store = store_at(root, 3)
    restored = store.restore(UNPINNED, small_state(0))
    store.close()
    assert restored is not None
    assert restored.ref == before.found[0].ref
    assert restored.rejected == ()
    assert restored.ref.step >= oldest_allowed
    assert bits(restored.state) == bits(small_state(restored.ref.step))
    assert restored.data == str(restored.ref.step).encode()
    left = [p for p in root.rglob("*") if p.name == PARTIAL_FILE or p.name.startswith(TRASH_PREFIX)]
    assert not [p for p in left if not (p.parent / MANIFEST_FILE).exists()], left
    return restored.ref.step


def _points(operations: list[str]) -> list[int]:
    """One index per distinct kind of operation: before each, and after those that change names."""
    seen: dict[str, int] = {}
    for index, label in enumerate(operations):
        if label.startswith("after:") and not label.startswith(("after:rename", "after:mkdir", "after:link")):
            continue
        seen.setdefault(_RANDOM_NAME.sub("*", label), index)
    return sorted(seen.values())


def _named(operations: list[str], point: int) -> tuple[str, int]:
    """(a text, n): the point is the n-th operation with this text. How many data files there are differs each time."""
    text = _RANDOM_NAME.split(operations[point])[0]
    return text, sum(1 for label in operations[:point] if text in label)


@pytest.mark.parametrize(
    ("kind", "scenario"),
    [
        ("ours", "save_once"),
        ("native", "save_once"),
        ("ours", "save_once_orbax"),
        ("python", "save_once_orbax"),
        pytest.param("native", "save_once_orbax", marks=pytest.mark.slow),
    ],
)
def test_kill_during_a_save(killer: Killer, saved: Path, tmp_path: Path, kind: str, scenario: str) -> None:
    root = _copy(saved, tmp_path / "dry")
    killed, operations = killer.run(scenario, root, kind=kind)
    assert not killed
    present = sum(1 for _ in saved.rglob("*")) if kind == "native" else 0
    points = _points(operations)
    assert len([p for p in points if p >= present]) >= {"ours": 30, "python": 4, "native": 8}[kind]
    outcomes = []
    for point in points:
        if point < present:
            continue
        root = _copy(saved, tmp_path / f"{kind}-{point}")
        only, number = _named(operations, point) if kind == "ours" else ("", point)
        killed, _ = killer.run(scenario, root, kind=kind, only=only, number=number)
        assert killed or kind == "native", operations[point]  # what the watcher meets differs a little each time
        outcomes.append(_require_sound(root, oldest_allowed=1))
    assert 1 in outcomes
    if kind == "ours":
        assert outcomes == sorted(outcomes), "a later kill may not lose what an earlier one left committed"
        assert outcomes[-1] == 2


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_one_of_two_processes_during_a_save(killer: Killer, saved: Path, tmp_path: Path, victim: int) -> None:
    """Before each distinct operation of that process, and after those that change names."""
    _, operations = killer.run("save_once", _copy(saved, tmp_path / "dry"), kind="ours", victim=victim)
    points = [p for p in _points(operations) if " 2/" in operations[p]]
    assert len(points) >= {0: 25, 1: 4}[victim], operations
    outcomes = []
    for point in points:
        root = _copy(saved, tmp_path / f"rank-{victim}-{point}")
        only, number = _named(operations, point)
        killed, _ = killer.run("save_once", root, kind="ours", victim=victim, only=only, number=number)
        assert killed, operations[point]
        outcomes.append(_require_sound(root, oldest_allowed=1))
    assert 1 in outcomes
    if victim == 0:
        assert outcomes == sorted(outcomes), "a later kill may not lose what an earlier one left committed"
        assert outcomes[-1] == 2


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_one_of_two_processes_while_retention_deletes(
    killer: Killer, saved: Path, tmp_path: Path, victim: int
) -> None:
    """Process 0 deletes, once the save of step 3 is committed; process 1 is killed in that save."""
    only = TRASH_PREFIX if victim == 0 else " 2/3/"
    dry = _copy(saved, tmp_path / "dry")
    _, operations = killer.run("save_and_retain", dry, kind="ours", only=only, victim=victim)
    assert len(operations) >= 4
    for point in _points(operations) if victim else range(len(operations)):
        root = _copy(saved, tmp_path / f"delete-{victim}-{point}")
        text, number = _named(operations, point)
        killed, _ = killer.run("save_and_retain", root, kind="ours", only=text, number=number, victim=victim)
        assert killed, operations[point]
        assert _require_sound(root, oldest_allowed=2) >= (2 if victim else 3)


def test_kill_while_retention_deletes(killer: Killer, saved: Path, tmp_path: Path) -> None:
    dry = _copy(saved, tmp_path / "dry")
    _, operations = killer.run("save_and_retain", dry, kind="ours", only=TRASH_PREFIX)
    assert [label.split()[0] for label in operations] == [
        f"{when}:{what}" for what in ("rename", "remove-tree") for when in ("before", "after")
    ]
    for point in range(len(operations)):
        root = _copy(saved, tmp_path / f"delete-{point}")
        killed, _ = killer.run("save_and_retain", root, kind="ours", only=TRASH_PREFIX, number=point)
        assert killed
        assert _require_sound(root, oldest_allowed=3) == 3


@pytest.mark.parametrize("scenario", ["save_once", "save_once_orbax"])
def test_order_of_what_makes_a_checkpoint_durable(killer: Killer, saved: Path, tmp_path: Path, scenario: str) -> None:
    root = _copy(saved, tmp_path / "run")
    _, operations = killer.run(scenario, root, kind="ours")
    commit = operations.index(f"after:rename 2/2/{MANIFEST_FILE}")
    manifest = RunFolder(root).survey().found[0].manifest
    for entry in manifest.files:
        assert operations.index(f"after:sync-file 2/2/{entry.path}") < commit, entry.path
    for folder in {str(Path("2/2", e.path).parent) for e in manifest.files} | {"2/2", "2"}:
        assert operations.index(f"after:sync-folder {folder}") < commit, folder
    assert operations[commit + 1 : commit + 3] == ["before:sync-folder 2/2", "after:sync-folder 2/2"]
