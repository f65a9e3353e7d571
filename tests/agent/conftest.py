"""One rig per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent.rig import AgentRig
from tests.support.operator.tls import Authority


@pytest.fixture
def rig(tmp_path: Path, authority: Authority) -> Iterator[AgentRig]:
    """An agent's world, not started yet."""
    rig = AgentRig(tmp_path, authority)
    try:
        yield rig
    finally:
        rig.close()
