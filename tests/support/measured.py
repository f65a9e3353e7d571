"""Coverage is measured in the tests that are about the measured code, and paused in the others.

Whole jobs on a cluster, trainings and documented programs run through the same code for minutes and add nothing that the
tests below do not show; tracing would only slow them down.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Final

import coverage
import pytest

MEASURED: Final = (
    "tests/agent/",
    "tests/contract/",
    "tests/storage/",
    "tests/training/test_changed_states",
    "tests/training/test_checkpointer",
    "tests/training/test_nnx_states",
    "tests/training/test_save_handles",
    "tests/training/test_sessions_under_rules",
    "tests/training/test_unhealthy_states",
    "tests/unit/",
)
"""Where these tests are, as node IDs begin."""
FOR_CHILDREN: Final = "COVERAGE_PROCESS_CONFIG"
"""What makes child processes measure themselves."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Pause around every other test; nothing to do unless ``coverage run`` started this process or one above it."""
    measurement = coverage.Coverage.current()
    if measurement is None or item.nodeid.startswith(MEASURED):
        return (yield)
    config = os.environ.pop(FOR_CHILDREN, None)
    measurement.stop()
    try:
        return (yield)
    finally:
        measurement.start()
        if config is not None:
            os.environ[FOR_CHILDREN] = config
