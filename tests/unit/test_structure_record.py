"""The record of a state's leaves: what older releases wrote reads as it did, and weak types are in it."""

from __future__ import annotations

import hashlib

from holdfast.state.leaves import Leaf, LeafKind, Structure, from_bytes

OLD = b'{"leaves": [\n{"path": "[\'w\']", "kind": "array", "shape": [2], "dtype": "float32"}\n]}\n'


def structure(*, weak: bool) -> Structure:
    return Structure((Leaf("['w']", LeafKind.ARRAY, (2,), "float32", weak_type=weak),))


def test_a_record_without_weak_types_is_byte_for_byte_what_it_was() -> None:
    assert structure(weak=False).to_bytes() == OLD
    assert structure(weak=False).digest == hashlib.sha256(OLD).hexdigest()
    assert from_bytes(OLD) == structure(weak=False)
    assert not from_bytes(OLD).leaves[0].weak_type


def test_weak_types_are_recorded_and_make_no_other_leaf() -> None:
    weak = structure(weak=True)
    assert from_bytes(weak.to_bytes()).leaves[0].weak_type
    assert weak.digest != structure(weak=False).digest
    assert weak == structure(weak=False)
