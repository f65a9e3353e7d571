"""What can go wrong, as types: every message says what was found and what would be right."""

from __future__ import annotations


class LocalkubeError(Exception):
    """Base of everything that localkube raises on purpose."""


class BinariesError(LocalkubeError):
    """The control plane's binaries are missing and could not be built."""


class StartError(LocalkubeError):
    """A component did not come up; the message carries the end of its log."""


class ClusterNameError(LocalkubeError):
    """No cluster of that name runs, or one does and must not."""


class NodeNameError(LocalkubeError):
    """No process node of that name exists, or the name may not be one's."""


class SupervisorError(LocalkubeError):
    """The cluster's supervisor refused a request or is gone."""


class HelmError(LocalkubeError):
    """A chart could not be installed; the message carries what Helm and the cluster said."""
