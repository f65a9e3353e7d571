"""Fixtures for every test, beside the plugin's `cluster`, `local_cluster`, `core_api` and `namespace`; who runs what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.training import compiled

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

    from tests.support.operator.tls import Authority

pytest_plugins = ["localkube.pytest_plugin", "tests.support.measured"]

# Most of these programs run for milliseconds and take LLVM seconds; the older emitters take it less than half as long.
# Pods get no such thing: the whole loop and the demo run what users run. Set before JAX is imported; child processes
# inherit it.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

# A busy machine makes an example slow, not wrong: time is measured in benchmarks/ only.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")

ON_CLUSTER = (
    "tests/apiserver/",
    "tests/chart/test_chart_server",
    "tests/docs/test_documented_jobs",
    "tests/e2e/",
    "tests/localkube/test_node_pods",
)
"""Where tests use the run's one cluster, as node IDs begin: one process runs them all."""
OF_THEIR_OWN = ("tests/e2e/test_whole_loop",)
"""What is below those and starts a cluster of its own."""


def on_cluster(nodeid: str) -> bool:
    """Whether the process that has the run's cluster runs this test."""
    return nodeid.startswith(ON_CLUSTER) and not nodeid.startswith(OF_THEIR_OWN)


def pytest_configure(config: pytest.Config) -> None:
    """The processes of one run share what they compile for trainings."""
    compiled.share(config)


@pytest.fixture(scope="session")
def authority() -> Authority:
    """Whom the agents trust."""
    from tests.support.operator.tls import new_authority

    return new_authority()


@pytest.fixture
def no_fault_left() -> Iterator[None]:
    """Storage works again after a test that made it fail."""
    from holdfast.store.format import fs

    yield
    fs.set_fault_hook(None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The cluster's tests come first, for they are the longest part."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()) and not on_cluster(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid}: uses the run's cluster; allowed: below {', '.join(ON_CLUSTER)}")
    items.sort(key=lambda item: not on_cluster(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """With several processes, one runs all tests of the run's one cluster; the others go file by file."""
    from xdist.scheduler import LoadScopeScheduling

    class OneCluster(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "cluster" if on_cluster(nodeid) else nodeid.partition("::")[0]

    return OneCluster(config, log)
