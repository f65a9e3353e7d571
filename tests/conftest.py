"""Fixtures for every test: `cluster`, `local_cluster`, `core_api` and `namespace`."""

pytest_plugins = ["localkube.pytest_plugin"]
