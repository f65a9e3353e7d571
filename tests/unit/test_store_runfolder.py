from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_contract import codec, manifest, runfolder
from holdfast_contract.keys import MANIFEST_FILE, OWNER_FILE
from holdfast_contract.manifest import CheckpointRef, FileEntry, Manifest, Owner
from holdfast_contract.runfolder import Found, OwnerRecordError, RunFolder


def _manifest(attempt: int, step: int, run: str = "run") -> Manifest:
    return Manifest(
        format=manifest.FORMAT,
        run=run,
        job_uid="uid",
        attempt=attempt,
        step=step,
        process_count=1,
        device_kind="cpu",
        tree_digest="",
        parent="",
        files=(FileEntry("state/a", 1, "0" * 32),),
    )


def _write(root: Path, attempt: int, step: int, data: bytes | None = None) -> Path:
    folder = root / str(attempt) / str(step)
    folder.mkdir(parents=True)
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes(_manifest(attempt, step)) if data is None else data)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_candidates_are_newest_first_by_attempt_then_step(root: Path) -> None:
    for attempt, step in ((1, 5), (1, 100), (2, 7), (10, 3), (2, 12)):
        _write(root, attempt, step)
    refs = RunFolder(root).candidates()
    assert [(r.attempt, r.step) for r in refs] == [(10, 3), (2, 12), (2, 7), (1, 100), (1, 5)]
    assert refs[0].digest == manifest.digest_of((root / "10" / "3" / MANIFEST_FILE).read_bytes())
    assert RunFolder(root).candidates(limit=2) == refs[:2]
    assert RunFolder(root).highest_attempt() == 10


def test_an_empty_or_missing_folder_is_an_empty_run(root: Path) -> None:
    assert RunFolder(root).candidates() == ()
    assert RunFolder(root).highest_attempt() == 0
    assert RunFolder(root).owner() is None
    root.write_text("a file in its place")
    assert RunFolder(root).attempts() == ()


@pytest.mark.parametrize("name", ["0", "01", "+1", "-1", "1.0", "٣", "1e3", "1 ", ".1", "9" * 30])
def test_names_that_are_no_attempt(root: Path, name: str) -> None:
    (root / name).mkdir(parents=True)
    assert RunFolder(root).attempts() == ()


def test_links_and_files_are_no_attempts(root: Path) -> None:
    _write(root, 1, 1)
    (root / "2").symlink_to(root / "1")
    (root / "3").write_text("")
    assert RunFolder(root).attempts() == (1,)
    assert RunFolder(root).newest_attempt() == 1


def test_the_next_attempt_is_numbered_above_stray_files_and_links(root: Path) -> None:
    _write(root, 1, 1)
    (root / "2").write_text("left by another program")
    assert RunFolder(root).highest_attempt() == 2
    (root / "3").symlink_to(root / "nowhere")
    (root / "4.txt").write_text("no number")
    assert RunFolder(root).highest_attempt() == 3
    (root / "1" / "5").write_text("a file where a step would be")
    assert [ref.key for ref in RunFolder(root).candidates()] == [(1, 1)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "size: found 0 bytes"),
        (b"{", "JSON"),
        (b"[]", "an object"),
        (b"{}", "format"),
        (manifest.to_bytes(_manifest(1, 3)), "run, attempt, step: found"),
        (manifest.to_bytes(_manifest(1, 2, run="other")), "run, attempt, step: found"),
        (manifest.to_bytes(_manifest(1, 2)).replace(b'"format": 1', b'"format": 99'), "format: found 99"),
        (manifest.to_bytes(_manifest(1, 2)).replace(b"state/a", b"../../a"), "path: found '../../a'"),
        (b"[" * 100_000, "JSON"),
    ],
)
def test_a_manifest_that_cannot_be_believed_is_refused_with_the_reason(root: Path, data: bytes, reason: str) -> None:
    _write(root, 1, 2, data)
    survey = RunFolder(root).survey()
    assert survey.found == ()
    [rejection] = survey.rejected
    assert (rejection.attempt, rejection.step) == (1, 2)
    assert rejection.reason.startswith(f"{MANIFEST_FILE}: ")
    assert reason in rejection.reason


def test_a_linked_manifest_or_step_is_refused(root: Path) -> None:
    folder = _write(root, 1, 1)
    (folder / MANIFEST_FILE).rename(folder / "real")
    (folder / MANIFEST_FILE).symlink_to("real")
    (root / "1" / "2").symlink_to(folder)
    assert ["symbolic link" in r.reason for r in RunFolder(root).survey().rejected] == [True, True]


def test_a_folder_where_the_manifest_should_be_is_refused(root: Path) -> None:
    (root / "1" / "1" / MANIFEST_FILE).mkdir(parents=True)
    assert "folder" in RunFolder(root).survey().rejected[0].reason


def test_the_owner_record(root: Path) -> None:
    root.mkdir()
    owner = Owner("uid", "team", "job", 3)
    (root / OWNER_FILE).write_bytes(codec.encode(owner))
    assert RunFolder(root).owner() == owner
    for wrong in (b"", b"x", b"{}", codec.encode(owner).replace(b"3", b'"3"')):
        (root / OWNER_FILE).write_bytes(wrong)
        with pytest.raises(OwnerRecordError, match="not a readable owner record"):
            RunFolder(root).owner()


def test_storage_that_denies_access_is_an_error_and_no_opinion_about_a_checkpoint(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(root, 1, 1)

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", denied)
    with pytest.raises(PermissionError):
        RunFolder(root).candidates()


def test_the_newest_of_a_thousand_is_found_reading_one_manifest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(1000):
        _write(root, 1, step)
    opened: list[Path] = []
    really_read = runfolder.read_regular_file

    def read(path: Path, max_bytes: int) -> bytes | None:
        opened.append(path)
        return really_read(path, max_bytes)

    monkeypatch.setattr(runfolder, "read_regular_file", read)
    newest = next(RunFolder(root).walk())
    assert isinstance(newest, Found)
    assert newest.ref == CheckpointRef(1, 999)
    assert opened == [root / "1" / "999" / MANIFEST_FILE]
    assert RunFolder(root).candidates(limit=1) == (newest.ref,)
    assert len(opened) <= 1 + 2, "reads more than it must"
    found = [entry for entry, _ in zip(RunFolder(root).walk(), range(3), strict=False)]
    assert [e.ref.step for e in found if isinstance(e, Found)] == [999, 998, 997]


def test_references_are_ordered_without_their_digest() -> None:
    a, b = CheckpointRef(1, 2, "x"), CheckpointRef(1, 2, "y")
    assert a == b
    assert dataclasses.replace(a, step=3) > b


@given(data=st.data())
def test_manifest_reads_back_only_as_the_bytes_that_were_stored(data: st.DataObject) -> None:
    whole = _manifest(3, 7)
    stored = manifest.to_bytes(whole)
    assert manifest.from_bytes(stored) == whole
    json.loads(stored)  # people and their tools can read it
    byte, bit = data.draw(st.integers(0, len(stored) - 1)), data.draw(st.integers(0, 7))
    flipped = stored[:byte] + bytes([stored[byte] ^ 1 << bit]) + stored[byte + 1 :]
    for damaged in (flipped, stored[:byte], stored + stored[byte:], stored[byte + 1 :]):
        with pytest.raises(codec.CodecError):
            manifest.from_bytes(damaged)


def test_manifest_of_a_newer_version_may_say_more() -> None:
    body = manifest.to_bytes(_manifest(3, 7)).rpartition(b'\n "sha256"')[0] + b'\n "later": 1,'
    tail = f'\n "sha256": "{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()
    assert manifest.from_bytes(body + tail) == _manifest(3, 7)
