"""Fixtures of the end-to-end tests: Holdfast installed in the run's cluster, and a job in a namespace of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from localkube.cluster import Cluster
from tests.support.cluster.job import ENVIRONMENT, Job, Script
from tests.support.cluster.world import World
from tests.support.training.ranks import world as ranks

LAST = "test_rbac.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What judges the whole session's requests comes after all that make them."""
    here = [i for i, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[i] for i in here), key=lambda item: item.path.name == LAST)
    for i, item in zip(here, ordered, strict=True):
        items[i] = item


@pytest.fixture(scope="session")
def world(local_cluster: Cluster) -> World:
    """Three nodes and the chart, once for all."""
    return World.build(local_cluster)


@pytest.fixture
def make_job(world: World, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes jobs (not yet applied); whatever is left of them at the end of the test is deleted."""
    made: list[Job] = []

    def make(script: Script, **more: Any) -> Job:
        job = Job(world, namespace, more.pop("storage", tmp_path / "checkpoints"), script, **more)
        made.append(job)
        return job

    yield make
    for job in made:
        with suppress(client.ApiException):
            job.delete()
    world.cluster.kubectl("delete", "pods", "-n", namespace, "--all", "--force", "--grace-period=0", "--wait=false")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The digest after so many steps of a run to which nothing happens, without any cluster."""

    @functools.cache
    def digest(steps: int) -> str:
        folder = tmp_path_factory.mktemp("undisturbed")
        with ranks(folder, "--steps", str(steps), count=2, attempt=None, agents=False, **ENVIRONMENT) as processes:
            assert processes.codes() == [0, 0]
            return processes[0].wait_for(r"digest ([0-9a-f]{64})")[1]

    return digest
