"""Fixtures for every test: `cluster`, `local_cluster`, `core_api` and `namespace`; how property tests run."""

from hypothesis import settings

pytest_plugins = ["localkube.pytest_plugin"]

# A busy machine makes an example slow, not wrong: time is measured in benchmarks/ only.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")
