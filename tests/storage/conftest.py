"""Where tests of storage save, and who saves with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage import world as storage_world


@pytest.fixture(scope="session")
def world() -> Iterator[storage_world.World]:
    """Two JAX processes with two devices each, started once for all tests of this folder."""
    with storage_world.world() as started:
        yield started


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run's folder on storage that exists and is empty."""
    return tmp_path / "char-lm"
