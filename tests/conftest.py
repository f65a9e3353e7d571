"""Fixtures for every test: `cluster`, `local_cluster`, `core_api` and `namespace`; how property tests run; who runs what."""

import pytest
from hypothesis import settings

pytest_plugins = ["localkube.pytest_plugin"]

# A busy machine makes an example slow, not wrong: time is measured in benchmarks/ only.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, one runs all tests of the run's one cluster, first; the others go file by file."""

    def on_cluster(item: pytest.Item) -> bool:
        return "cluster" in getattr(item, "fixturenames", ())

    for item in items:
        item.add_marker(pytest.mark.xdist_group("cluster" if on_cluster(item) else item.path.stem))
    items.sort(key=lambda item: not on_cluster(item))
