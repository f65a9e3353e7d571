"""CRC-32C against known values and against the definition."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.format.ocdbt.crc32c import crc32c


def _bit_by_bit(data: bytes) -> int:
    register = 0xFFFFFFFF
    for octet in data:
        register ^= octet
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, appendix B.4, and the check value of the catalogue of parametrised CRCs
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_known_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@given(st.integers(0, 20_000), st.integers(0, 2**32))
def test_any_length_is_as_the_definition_says(length: int, seed: int) -> None:
    data = random.Random(seed).randbytes(length)
    assert crc32c(data) == _bit_by_bit(data)
    assert crc32c(memoryview(data)) == _bit_by_bit(data)
