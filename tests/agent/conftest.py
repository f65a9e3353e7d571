"""One authority for the module's endpoints; one rig per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent.rig import AgentRig
from tests.support.operator.tls import Authority, new_authority


@pytest.fixture(scope="session")
def authority() -> Authority:
    """Whom the agents trust."""
    return new_authority()


@pytest.fixture
def rig(tmp_path: Path, authority: Authority) -> Iterator[AgentRig]:
    """An agent's world, not started yet."""
    rig = AgentRig(tmp_path, authority)
    try:
        yield rig
    finally:
        rig.close()
