"""What identifies a job and a pod, and serves as a key wherever something is kept for each of them.

A checkpoint is identified by ``manifest.CheckpointKey``.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

PodUid: TypeAlias = str
"""``metadata.uid`` of a pod. A pod's name may come back with another pod; its UID never does."""


class JobKey(NamedTuple):
    """Namespace and name of a TrainingJob. The operator queues, caches and answers requests by it."""

    namespace: str
    name: str
