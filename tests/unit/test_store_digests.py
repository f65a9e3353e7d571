from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.format import digests, fs
from holdfast_contract.manifest import FileEntry
from tests.support.virtual_time import Clock

_entries = st.lists(
    st.builds(
        FileEntry,
        st.from_regex(r"[a-z0-9]{1,8}(/[a-z0-9]{1,8}){0,2}", fullmatch=True),
        st.integers(0, 10**12),
        st.just("0" * 32),
    ),
    unique_by=lambda e: e.path,
    max_size=40,
)


@given(_entries, st.integers(1, 9))
def test_every_file_is_verified_by_exactly_one_rank_and_bytes_are_spread(entries: list[FileEntry], ranks: int) -> None:
    shares = [digests.share_of(entries, rank, ranks) for rank in range(ranks)]
    assert sorted(e.path for share in shares for e in share) == sorted(e.path for e in entries)
    load = [sum(e.size + 1 for e in share) for share in shares]
    largest = max((e.size + 1 for e in entries), default=0)
    assert max(load) - min(load) <= largest


@given(_entries, st.integers(1, 9), st.randoms(use_true_random=False))
def test_shares_do_not_depend_on_the_order_of_the_list(entries: list[FileEntry], ranks: int, random: object) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for rank in range(ranks):
        assert digests.share_of(entries, rank, ranks) == digests.share_of(shuffled, rank, ranks)


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("state/ocdbt.process_3/d/abc", 3),
        ("state/array_metadatas/process_12", 12),
        ("data/process-7.bin", 7),
        ("state/_METADATA", 0),
        ("state/d/process", 0),
        ("state/subprocess_5", 0),
    ],
)
def test_the_writer_of_a_file_is_in_its_path(path: str, rank: int) -> None:
    assert digests.writer_of(path) == rank


def test_sizes_are_checked_before_any_byte_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    (tmp_path / "b").write_bytes(b"y")
    entries = [FileEntry("a", 100, "0" * 32), FileEntry("b", 2, "0" * 32)]
    with pytest.raises(digests.DamagedFileError, match="b: size: expected 2 bytes, found 1"):
        digests.verify_files(tmp_path, entries, threads=2, transient_seconds=0.1)


def test_a_digest_says_expected_and_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"right")
    [entry] = digests.describe_files(tmp_path, ["a"], threads=1)
    digests.verify_files(tmp_path, [entry], threads=1, transient_seconds=0.1)
    (tmp_path / "a").write_bytes(b"wrong")
    with pytest.raises(digests.DamagedFileError, match=f"a: digest: expected {entry.digest}, found [0-9a-f]{{32}}"):
        digests.verify_files(tmp_path, [entry], threads=1, transient_seconds=0.1)


def test_a_folder_in_between_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_bytes(b"1")
    (tmp_path / "way").symlink_to("real")
    with pytest.raises(digests.DamagedFileError, match="symbolic link"):
        digests.verify_files(tmp_path, [FileEntry("way/a", 1, "0" * 32)], threads=1, transient_seconds=0.1)


@given(st.binary(max_size=4000), st.data())
def test_any_single_bit_flip_changes_the_digest(data: bytes, draw: st.DataObject) -> None:
    if not data:
        return
    path = Path(f"/dev/shm/holdfast-digest-{os.getpid()}")
    try:
        path.write_bytes(data)
        before = digests.hash_file(path)
        bit = draw.draw(st.integers(0, 8 * len(data) - 1))
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert digests.hash_file(path) != before
    finally:
        path.unlink()


def test_a_transient_error_is_retried_and_another_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock().install(monkeypatch)
    left = [errno.EIO, errno.ESTALE]

    def flaky() -> str:
        if left:
            raise OSError(left.pop(0), "passes")
        return "done"

    assert fs.retry_transient(flaky, seconds=5) == "done"
    calls = []

    def denied() -> str:
        calls.append(1)
        raise OSError(errno.EACCES, "stays")

    with pytest.raises(PermissionError):
        fs.retry_transient(denied, seconds=5)
    assert len(calls) == 1
