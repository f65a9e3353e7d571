"""What all tests of localkube share."""

import signal
from collections.abc import Iterator

import pytest

from localkube.cluster import Cluster


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A cluster that the tests of a file may hurt."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A run in the background ignores SIGINT, and so would what the tests start and interrupt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
