"""A renamed run folder: its checkpoints are refused until they are adopted, and then continued from exactly."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from holdfast.catalog.adopting import plan_adoption
from holdfast.cli import main
from holdfast.store import UNPINNED
from holdfast_contract import manifest
from holdfast_contract.keys import MANIFEST_FILE
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import bits, small_state, store_at


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Attempt 1 committed steps 1 and 2 of ``before``, attempt 2 continued with step 3; then it was renamed to ``after``."""
    root = tmp_path / "before"
    for attempt, steps in ((1, (1, 2)), (2, (3,))):
        store = store_at(root, attempt)
        if attempt == 2:
            assert store.restore(UNPINNED, small_state(0)) is not None
        for step in steps:
            store.save(step, small_state(step)).result(30)
        store.close()
    root.rename(tmp_path / "after")
    return tmp_path / "after"


def _contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_an_adopted_run_continues_and_only_manifests_were_written(run: Path) -> None:
    before = _contents(run)
    assert main(["checkpoints", "verify", str(run)]) == 1
    assert main(["checkpoints", "adopt", str(run), "--yes"]) == 0
    assert main(["checkpoints", "verify", str(run)]) == 0
    after = _contents(run)
    assert after.keys() == before.keys()
    assert {Path(name).name for name in after if after[name] != before[name]} == {MANIFEST_FILE}
    found = RunFolder(run).survey().found[::-1]
    assert [entry.manifest.run for entry in found] == ["after"] * 3
    assert [entry.manifest.parent for entry in found] == ["", found[0].ref.digest, found[1].ref.digest]
    restored = store_at(run, 3).restore(UNPINNED, small_state(0))
    assert restored is not None
    assert (restored.ref.step, restored.rejected) == (3, ())
    assert bits(restored.state) == bits(small_state(3))


def test_an_adoption_that_was_cut_off_is_completed(run: Path) -> None:
    plan = plan_adoption(run)
    assert [each.key for each in plan.manifests] == [(1, 1), (1, 2), (2, 3)], "oldest first"
    for each in plan.manifests[:2]:
        each.path.write_bytes(each.data)
    again = plan_adoption(run)
    assert again.manifests == plan.manifests[2:]
    again.publish()
    assert plan_adoption(run).manifests == ()


def test_nothing_is_written_without_yes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _contents(run)
    assert main(["checkpoints", "adopt", str(run)]) == 64
    assert "`--yes` is required but not set" in capsys.readouterr().err
    assert main(["checkpoints", "adopt", str(run), "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["former"], told["run"], len(told["adopted"])) == ("before", "after", 3)
    assert _contents(run) == before


def test_damaged_and_foreign_checkpoints_are_not_adopted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = run / "1" / "1" / MANIFEST_FILE
    damaged.write_bytes(damaged.read_bytes().replace(b'"step": 1', b'"step": 7'))
    assert main(["checkpoints", "adopt", str(run), "--yes"]) == 1
    refusal = capsys.readouterr().out.partition("refused ")[2]
    assert refusal.startswith("attempt 1 step 1: HOLDFAST.json: ")
    assert "sha256" in refusal
    assert [ref.key for ref in RunFolder(run).candidates()] == [(2, 3), (1, 2)]
    for step, name in (("1/2", "other"), ("2/3", "third")):
        path = run / step / MANIFEST_FILE
        read = manifest.from_bytes(path.read_bytes())
        path.write_bytes(manifest.to_bytes(dataclasses.replace(read, run=name)))
    assert main(["checkpoints", "adopt", str(run), "--yes"]) == 2
    assert "found checkpoints of the runs other, third" in capsys.readouterr().err
