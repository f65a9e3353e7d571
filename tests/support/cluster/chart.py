"""Renders and installs the chart with Helm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from localkube import binaries

CHART: Final = Path(__file__).parents[3] / "charts" / "holdfast"
IMAGE: Final = "--set=image.repository=holdfast/operator"
"""The image that process nodes know; the chart has no default of its own."""
_COMMAND_SECONDS: Final = 60

Object = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    """The helm program, aimed at a cluster unless it only renders."""

    kubeconfig: Path | None = None

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run helm and return what it said, whatever the end."""
        target = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        command = [str(binaries.helm()), *arguments, *target]
        return subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)

    def template(self, *options: str, release: str = "holdfast", namespace: str = "hf-system") -> list[Object]:
        """The rendered objects. Raises RuntimeError with helm's words."""
        done = self.run("template", release, str(CHART), "--namespace", namespace, IMAGE, *options)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return [o for o in yaml.safe_load_all(done.stdout) if o]

    def apply(self, verb: str, release: str, namespace: str, *options: str) -> None:
        """``install`` or ``upgrade`` without waiting. Raises RuntimeError with helm's words."""
        done = self.run(verb, release, str(CHART), "--namespace", namespace, IMAGE, *options)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)


def sets(values: Mapping[str, object]) -> Iterator[str]:
    """Values as ``--set-json`` options."""
    for path, value in values.items():
        yield f"--set-json={path}={json.dumps(value)}"


def only(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind (and name)."""
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, [(o["kind"], o["metadata"]["name"]) for o in objects]
    return found[0]
