"""CRC-32C (Castagnoli), the checksum of OCDBT's nodes. None of the project's dependencies provides it.

Source: RFC 3720, appendix B.4: polynomial 0x1EDC6F41, reflected 0x82F63B78, initial value and final XOR 0xFFFFFFFF.
Long data is cut into lanes of equal length, and numpy updates the registers of all lanes at once. The registers are then
combined, which works because the register is linear over GF(2).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_POLYNOMIAL: Final = 0x82F63B78
_ALL_ONES: Final = 0xFFFFFFFF
_LANE_BYTES: Final = 1024
_SHORT_BYTES: Final = 4 * _LANE_BYTES
"""Below this plain Python is as fast."""

_Words = npt.NDArray[np.uint32]


def _table() -> _Words:
    words = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        words = np.where(words & 1, (words >> 1) ^ np.uint32(_POLYNOMIAL), words >> 1).astype(np.uint32)
    return words


_TABLE: Final = _table()
_TABLE_LIST: Final = _TABLE.tolist()


def _after_lane() -> list[list[int]]:
    """The register after one lane of zeros, by each of its four bytes: four tables of 256 entries."""
    registers = (np.arange(256, dtype=np.uint32)[None, :] << (8 * np.arange(4, dtype=np.uint32))[:, None]).ravel()
    for _ in range(_LANE_BYTES):
        registers = _TABLE[registers & 0xFF] ^ (registers >> 8)
    return [row.tolist() for row in registers.reshape(4, 256)]


_AFTER_LANE: Final = _after_lane()


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The checksum of ``data``, 0 to 2**32 - 1."""
    octets = np.frombuffer(data, np.uint8)
    register = _ALL_ONES
    if octets.size >= _SHORT_BYTES:
        lanes = octets.size // _LANE_BYTES
        register = _joined(register, _lane_registers(octets[: lanes * _LANE_BYTES].reshape(lanes, _LANE_BYTES)))
        octets = octets[lanes * _LANE_BYTES :]
    for octet in octets.tobytes():
        register = _TABLE_LIST[(register ^ octet) & 0xFF] ^ (register >> 8)
    return register ^ _ALL_ONES


def _lane_registers(lanes: npt.NDArray[np.uint8]) -> list[int]:
    registers = np.zeros(len(lanes), np.uint32)
    for column in np.ascontiguousarray(lanes.T):
        registers = _TABLE[(registers ^ column) & 0xFF] ^ (registers >> 8)
    found: list[int] = registers.tolist()
    return found


def _joined(register: int, lanes: list[int]) -> int:
    first, second, third, fourth = _AFTER_LANE
    for lane in lanes:
        moved = first[register & 0xFF] ^ second[register >> 8 & 0xFF] ^ third[register >> 16 & 0xFF]
        register = moved ^ fourth[register >> 24] ^ lane
    return register
