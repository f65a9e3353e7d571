"""The command line on real checkpoints, whole and damaged."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from holdfast.cli import main
from holdfast.cli.progress import VerifyProgress
from holdfast.store import CheckpointExtras
from holdfast.store.format import digests
from holdfast_contract.keys import MANIFEST_FILE, OWNER_FILE, PARTIAL_FILE
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import flip_bit, small_state, store_at


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run ``char-lm``: attempt 1 committed steps 1, 2 (kept) and 3, attempt 2 steps 3 and 4."""
    root = tmp_path_factory.mktemp("saved") / "char-lm"
    for attempt, steps in ((1, (1, 2, 3)), (2, (3, 4))):
        store = store_at(root, attempt)
        for step in steps:
            request = CheckpointExtras(metrics={"loss": 10.0 - step}, pinned=step == 2)
            store.save(step, small_state(step), request).result(30)
        store.close()
    return root


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "checkpoints" / saved.name)
    return tmp_path / "checkpoints" / saved.name


def _data_file(step_folder: Path) -> Path:
    return max((p for p in step_folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main(["checkpoints", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_ls_names_attempts_steps_metrics_and_the_newest_valid_one(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(_data_file(run / "2" / "4"), 7)
    (run / "2" / "9").mkdir()
    (run / "2" / "9" / PARTIAL_FILE).write_text("{}")
    for path in (run, run.parent):
        listed = _json(capsys, "ls", str(path))
        found = listed["checkpoints"]
        assert [(c["attempt"], c["step"]) for c in found] == [(2, 4), (2, 3), (1, 3), (1, 2), (1, 1)]
        assert [c["status"] for c in found] == ["damaged"] + ["valid"] * 4
        assert "found 7" in found[0]["reason"]
        assert [c["newest_valid"] for c in found] == [False, True, False, False, False]
        assert [c["kept"] for c in found] == [False, False, False, True, False]
        assert found[1]["metrics"] == {"loss": 7.0}
        assert found[1]["bytes"] == sum(
            p.stat().st_size for p in (run / "2" / "3").rglob("*") if p.is_file() and p.name != MANIFEST_FILE
        )
        assert listed["without_manifest"] == [str(run / "2" / "9")]
    assert main(["checkpoints", "ls", str(run.parent), "--run", "char-lm"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[:5] == ["*", "char-lm", "2", "3", lines[2].split()[4]]
    assert "loss=7" in lines[2]


def test_only_a_deep_check_sees_a_flipped_bit(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_bit(_data_file(run / "2" / "4"))
    assert _json(capsys, "ls", str(run))["checkpoints"][0]["status"] == "valid"
    deep = _json(capsys, "ls", str(run), "--deep")
    assert (deep["checked"], deep["checkpoints"][0]["status"]) == ("digests", "damaged")
    assert "digest: expected" in deep["checkpoints"][0]["reason"]


def test_verify_tells_by_its_exit_code(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "verify", str(run)]) == 0
    flip_bit(_data_file(run / "1" / "1"))
    capsys.readouterr()
    assert main(["checkpoints", "verify", str(run)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert [": valid" in line for line in printed] == [True] * 4 + [False]
    assert main(["checkpoints", "verify", str(run / "1" / "1")]) == 1
    assert main(["checkpoints", "verify", str(run / "1" / "2")]) == 0
    assert main(["checkpoints", "verify", str(run / "1")]) == 1
    assert main(["checkpoints", "verify", str(run / "2")]) == 0, "one attempt alone"
    (run.parent / "empty").mkdir()
    assert main(["checkpoints", "verify", str(run.parent / "empty")]) == 2, "nothing to verify is not fine"
    assert main(["checkpoints", "verify", str(run / "nowhere")]) == 2


def test_a_damaged_manifest_is_listed_with_its_reason(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(run / "2" / "4" / MANIFEST_FILE, 100)
    first = _json(capsys, "verify", str(run / "2" / "4"), code=1)["checkpoints"][0]
    assert (first["status"], first["step"], first["files"]) == ("damaged", 4, 0)
    assert MANIFEST_FILE in first["reason"]


def test_diff_of_structure_and_of_values(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = str(run / "1" / "1"), str(run / "1" / "3")
    assert _json(capsys, "diff", one, one)["same"]
    found = _json(capsys, "diff", one, two, code=1)
    assert found["max_abs_difference"] == {"step": 2.0, "table": 12.0, "w": 2.0}
    assert _json(capsys, "diff", one, two, "--structure")["max_abs_difference"] is None
    other = store_at(tmp_path / "other", 1)
    other.save(1, {"w": jnp.zeros((64, 32)), "bias": jnp.ones(3), "step": 1}).result(30)
    other.close()
    found = _json(capsys, "diff", one, str(tmp_path / "other" / "1" / "1"), code=1)
    assert (found["only_first"], found["only_second"]) == (["table"], ["bias"])
    assert [c["name"] for c in found["changed"]] == ["w"]
    assert found["max_abs_difference"] == {}
    flip_bit(_data_file(run / "1" / "3"))
    assert main(["checkpoints", "diff", one, two]) == 84
    assert "digest" in capsys.readouterr().err


def test_rm_refuses_what_retention_would_never_delete(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, second, third, kept = run / "2" / "4", run / "2" / "3", run / "1" / "3", run / "1" / "2"
    for folder in (newest, second, kept):
        assert main(["checkpoints", "rm", str(folder)]) == 1
        assert folder.exists()
    assert main(["checkpoints", "rm", str(third), "--dry-run"]) == 0
    assert third.exists()
    assert main(["checkpoints", "rm", str(third)]) == 0
    assert not third.exists()
    assert not list(run.rglob(".trash-*"))
    assert main(["checkpoints", "rm", "--force", str(kept), str(newest)]) == 0
    assert not kept.exists()
    assert not newest.exists()


def test_damaged_checkpoints_do_not_stand_in_for_the_last_two_valid_ones(run: Path) -> None:
    for step in (3, 4):
        flip_bit(_data_file(run / "2" / str(step)))
    assert main(["checkpoints", "rm", str(run / "1" / "3")]) == 1
    assert main(["checkpoints", "rm", str(run / "2" / "4")]) == 0
    assert not (run / "2" / "4").exists()


def test_rm_never_removes_what_holdfast_did_not_write(run: Path, tmp_path: Path) -> None:
    (run / "1" / "8").mkdir()
    (run / "1" / "8" / "precious").write_text("x")
    (run / "1" / "7").symlink_to(run / "1" / "1")
    (run / "2" / "9").mkdir()
    (run / "2" / "9" / PARTIAL_FILE).write_text("{}")
    for folder in (run / "1" / "8", run / "1" / "7", run / "1", run, tmp_path):
        assert main(["checkpoints", "rm", "--force", str(folder)]) == 1
    assert (run / "1" / "8" / "precious").exists()
    assert (run / "1" / "1" / MANIFEST_FILE).exists()
    assert main(["checkpoints", "rm", str(run / "2" / "9")]) == 1, "perhaps a save in progress"
    assert main(["checkpoints", "rm", "--force", str(run / "2" / "9")]) == 0


def test_rm_of_an_attempt_removes_its_steps_unless_one_of_them_must_stay(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for attempt in (3, 4):
        store = store_at(run, attempt)
        store.save(5 + attempt, small_state(attempt)).result(30)
        store.close()
    assert main(["checkpoints", "rm", str(run / "1")]) == 1
    assert f"refused {run / '1'}: 2: the program asked to keep it" in capsys.readouterr().out
    assert main(["checkpoints", "rm", str(run / "3")]) == 1, "one of the newest two valid checkpoints"
    assert main(["checkpoints", "rm", str(run / "4")]) == 1
    assert "the newest attempt of its run" in capsys.readouterr().out
    (run / "2" / "notes.txt").write_text("x")
    assert main(["checkpoints", "rm", "--force", str(run / "2")]) == 1
    assert "notes.txt: Holdfast did not write it" in capsys.readouterr().out
    (run / "2" / "notes.txt").unlink()
    assert main(["checkpoints", "rm", str(run / "2"), "--dry-run"]) == 0
    assert (run / "2" / "4" / MANIFEST_FILE).exists()
    assert main(["checkpoints", "rm", str(run / "2")]) == 0
    assert main(["checkpoints", "rm", "--force", str(run / "1")]) == 0
    assert sorted(path.name for path in run.iterdir()) == ["3", "4", OWNER_FILE]


def test_ls_of_one_step(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "ls", str(run / "1" / "2"))["checkpoints"]
    assert [(c["attempt"], c["step"], c["status"], c["kept"]) for c in found] == [(1, 2, "valid", True)]


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"holdfast {version('holdfast-training')}\n"


def test_verify_says_on_stderr_what_it_reads(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["checkpoints", "verify", str(run)]) == 0
    assert capsys.readouterr().err == "", "a log is spared a line per checkpoint"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert len(_json(capsys, "verify", str(run))["checkpoints"]) == 5
    assert main(["checkpoints", "verify", str(run)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("checkpoint 1: reading attempt 2 step 4, ")
    assert lines[0].endswith("; 0 B read before")


def test_a_log_has_a_line_of_verify_every_few_seconds(run: Path) -> None:
    now, log = 100.0, io.StringIO()
    progress = VerifyProgress(log, lambda: now)
    for entry in RunFolder(run).walk():
        progress.begin(entry)
        now += 2.0
    assert [line.split(":")[0] for line in log.getvalue().splitlines()] == ["checkpoint 4"]


def test_storage_that_denies_access_is_no_verdict(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = _data_file(run / "2" / "4")
    real = digests.hash_file

    def hash_file(path: Path) -> tuple[int, str]:
        if path == blocked:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path)

    monkeypatch.setattr(digests, "hash_file", hash_file)  # root, as which tests may run, is denied nothing
    found = _json(capsys, "verify", str(run), code=84)["checkpoints"]
    assert [c["status"] for c in found] == ["unknown"] + ["valid"] * 4
    assert str(blocked) in found[0]["reason"]


def test_looking_needs_no_jax(run: Path) -> None:
    program = (
        "import sys; from holdfast.cli import main\n"
        "for a in (['ls', sys.argv[1]], ['verify', sys.argv[1]], ['rm', '--dry-run', sys.argv[1] + '/1/1'],\n"
        "          ['diff', '--structure', sys.argv[1] + '/1/1', sys.argv[1] + '/1/2']):\n"
        "    assert main(['checkpoints', *a]) == 0, a\n"
        "assert not {'jax', 'numpy', 'orbax'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", program, str(run)], check=True, timeout=30, stdout=subprocess.DEVNULL)
    ran = subprocess.run([sys.executable, "-m", "holdfast", "checkpoints", "verify", str(run)], timeout=30, check=False)
    assert ran.returncode == 0
