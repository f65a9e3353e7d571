"""What the encoder writes is what TensorStore reads."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import tensorstore
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.store.format.ocdbt.encode import IndexEntry, Leaves

KEYS = st.binary(min_size=1, max_size=20) | st.sampled_from([b"layer/0", b"layer/0.0", b"layer/.zarray", b"\xff" * 9])
STORED = st.dictionaries(KEYS, st.tuples(st.binary(max_size=300), st.integers(0, 3)), max_size=40)


def _write(folder: Path, stored: dict[bytes, tuple[bytes, int]], node_bytes: int) -> None:
    """File number 0 stands for "inline"; the others hold the values with a gap before each."""
    names = ["data", "d/one", "d/one-more", "x/d/two"]
    contents = {number: bytearray() for number in range(1, len(names))}
    entries = []
    for key, (value, number) in stored.items():
        if number == 0:
            entries.append(IndexEntry(key, value))
            continue
        contents[number] += b"gap" + value
        entries.append(IndexEntry(key, None, number, len(contents[number]) - len(value), len(value)))
    encoded = Leaves(entries, node_bytes=node_bytes).encode(names, "d/nodes", commit_nanoseconds=1_700_000_000 * 10**9)
    (folder / "x/d").mkdir(parents=True)
    (folder / "d").mkdir()
    for number, content in contents.items():
        (folder / names[number]).write_bytes(content)
    (folder / encoded.nodes_path).write_bytes(encoded.nodes)
    (folder / "manifest.ocdbt").write_bytes(encoded.manifest)


def _read(folder: Path) -> dict[bytes, bytes]:
    store = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{folder}/"}).result()
    return {key: store.read(key).result().value for key in store.list().result()}


@settings(deadline=None, max_examples=60)
@given(STORED, st.integers(20, 2000))
def test_tensorstore_reads_what_was_encoded(stored: dict[bytes, tuple[bytes, int]], node_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), stored, node_bytes)
        assert _read(Path(folder)) == {key: value for key, (value, _) in stored.items()}


def test_statistics_add_up_over_several_levels(tmp_path: Path) -> None:
    stored = {f"key-{number:05}".encode(): (bytes(number % 7), number % 4) for number in range(3000)}
    _write(tmp_path, stored, 400)
    base = tensorstore.KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result()
    (version,) = tensorstore.ocdbt.dump(base).result()["versions"]
    assert version["root_height"] > 1
    statistics = version["root"]["statistics"]
    assert statistics["num_keys"] == 3000
    assert statistics["num_tree_bytes"] == (tmp_path / "d/nodes").stat().st_size
    assert statistics["num_indirect_value_bytes"] == sum(len(value) for value, number in stored.values() if number)


def test_a_key_must_be_there_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Leaves([IndexEntry(b"a", b""), IndexEntry(b"a", b"1")])


def test_a_flipped_bit_of_the_index_is_found_by_the_reader(tmp_path: Path) -> None:
    _write(tmp_path, {b"a": (b"1", 0), b"b": (b"2", 1)}, 2000)
    for name in ("manifest.ocdbt", "d/nodes"):
        whole = (tmp_path / name).read_bytes()
        damaged = bytearray(whole)
        damaged[len(damaged) - 6] ^= 1
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=r"DATA_LOSS|CRC"):
            _read(tmp_path)
        (tmp_path / name).write_bytes(whole)
