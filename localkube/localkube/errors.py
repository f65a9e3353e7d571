"""The errors of localkube. Each message says what was found and what is allowed."""

from __future__ import annotations


class LocalkubeError(Exception):
    """Base of all errors that localkube raises on purpose."""


class BinariesError(LocalkubeError):
    """A program is missing and could not be built."""


class StartError(LocalkubeError):
    """A component did not start; the message has the end of its log."""


class ClusterNameError(LocalkubeError):
    """No cluster has this name, another cluster has it, or the name is malformed."""


class NodeNameError(LocalkubeError):
    """No process node has this name, or a node may not have it."""


class SupervisorError(LocalkubeError):
    """The cluster's supervisor refused a request or is gone."""


class HelmError(LocalkubeError):
    """A chart could not be installed; the message has the output of Helm and the state of the cluster."""
