"""Installs a chart as its users would. On failure it says what the cluster knows about the release's pods."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localkube.access import DISCOVERY_CACHE_VARIABLE, ClusterAccess
from localkube.binaries import helm
from localkube.errors import HelmError
from localkube.progress import Progress, silent

_MARGIN_SECONDS = 30.0
"""Helm has a deadline of its own. If it is still there this much later, it is killed."""
_LOG_LINES = 200


@dataclass(frozen=True)
class Release:
    """A chart, and where to install it."""

    name: str
    chart: Path
    namespace: str
    options: Sequence[str] = ()
    """Further options of `helm install`."""


def install(cluster: ClusterAccess, release: Release, *, deadline_seconds: float, progress: Progress = silent) -> None:
    """Install a release and its namespace, and wait until all of it is ready.

    `deadline_seconds` covers the install and the wait, not a build of Helm. `progress` is called with one line before the
    install, and during a build. Raises HelmError with the output of Helm, the release's pods, their events and the end of
    their logs; BinariesError if there is no Helm and it cannot be built.
    """
    if deadline_seconds <= 0:
        raise ValueError(f"deadline_seconds is {deadline_seconds}, must be more than 0")
    command = [
        str(helm(progress)), "install", release.name, str(release.chart), f"--kubeconfig={cluster.kubeconfig}",
        "--namespace", release.namespace, "--create-namespace", "--wait", "--timeout", f"{deadline_seconds:g}s",
        *release.options,
    ]  # fmt: skip
    cache = {DISCOVERY_CACHE_VARIABLE: str(cluster.discovery_cache)} if cluster.discovery_cache else {}
    limit_seconds = deadline_seconds + _MARGIN_SECONDS
    progress(f"helm install {release.name} {release.chart.name}")
    try:
        done = subprocess.run(
            command, env={**os.environ, **cache}, capture_output=True, text=True, timeout=limit_seconds, check=False
        )
    except subprocess.TimeoutExpired as late:
        said = f"it did not end within {late.timeout:g} s"
    else:
        if done.returncode == 0:
            return
        said = done.stderr.strip()
    raise HelmError(f"helm install {release.name} failed: {said}\n{diagnosis(cluster, release)}")


def diagnosis(cluster: ClusterAccess, release: Release) -> str:
    """What the cluster knows about a release's namespace: pods, events, and the end of the pods' logs."""
    selector = f"--selector=app.kubernetes.io/instance={release.name}"  # the label of Helm's conventions
    questions = (
        ("describe", "pods"),
        ("get", "events", "--sort-by=.metadata.creationTimestamp"),
        ("logs", selector, "--all-containers", "--prefix", "--ignore-errors", f"--tail={_LOG_LINES}"),
    )
    return "\n".join(_asked(cluster, *words, f"--namespace={release.namespace}") for words in questions)


def _asked(cluster: ClusterAccess, *words: str) -> str:
    try:
        done = cluster.kubectl(*words, check=False)
    except subprocess.TimeoutExpired as late:
        return f"-- kubectl {' '.join(words)}: no answer within {late.timeout:g} s"
    return f"-- kubectl {' '.join(words)}\n{done.stdout}{done.stderr}"
