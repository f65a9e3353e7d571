"""Writes the CRD from the models: ``python -m holdfast_contract.crd [--check] [ROOT]``.

The same file is committed in ``crds/`` for people and in the chart for Helm. The chart renders it as an ordinary
template, because Helm installs the files of a chart's own ``crds/`` folder once and never upgrades them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from holdfast_contract import keys
from holdfast_contract.api import TrainingJob, TrainingJobSpec, TrainingJobStatus
from holdfast_contract.crd_rules import RULES
from holdfast_contract.crd_schema import structural_schema

FILE_NAME: Final = f"{keys.CRD_NAME}.yaml"
TARGETS: Final = (Path("crds") / FILE_NAME, Path("charts/holdfast/files") / FILE_NAME)
"""Where the CRD is committed, relative to the repository's root."""

HEADER: Final = "# Generated from holdfast_contract.api by `python -m holdfast_contract.crd`; do not edit.\n"

COLUMNS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("State", "string", ".status.state", "What the job is doing, in one word"),
    ("Step", "integer", ".status.progress.step", "Last step whose result exists in every worker"),
    ("Attempt", "integer", ".status.activeAttempt", "Number of the attempt that trains, or of the last one that did"),
    ("Checkpoint", "integer", ".status.checkpoint.newest.step", "Step of the newest committed checkpoint"),
    ("Restarts", "integer", ".status.restartsTotal", "Restarts of all causes"),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was created"),
)
WIDE_COLUMNS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("Of", "integer", ".status.progress.totalSteps", "Step at which training ends"),
    ("Workers", "integer", ".status.workers.ready", "Pods whose agent reports"),
    ("Last-End", "string", ".status.lastEnd.cause", "Why the last finished attempt ended"),
    ("Run", "string", ".status.checkpoint.run", "Folder of the run under the checkpoint path"),
)


def custom_resource_definition() -> dict[str, Any]:
    """The CustomResourceDefinition of TrainingJob."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": keys.CRD_NAME,
            # Helm must not delete all jobs when it uninstalls the operator. Other tools ignore this annotation.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": keys.API_GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": keys.KIND,
                "listKind": f"{keys.KIND}List",
                "plural": keys.PLURAL,
                "singular": keys.SINGULAR,
                "shortNames": [keys.SHORT_NAME],
            },
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": keys.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*c) for c in COLUMNS] + [_column(*c, priority=1) for c in WIDE_COLUMNS],
        "schema": {"openAPIV3Schema": _schema()},
    }


def _column(name: str, kind: str, path: str, description: str, *, priority: int = 0) -> dict[str, Any]:
    column = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return column | ({"priority": priority} if priority else {})


def _schema() -> dict[str, Any]:
    spec = structural_schema(TrainingJobSpec, "spec")
    status = structural_schema(TrainingJobStatus, "status")
    return {
        "description": TrainingJob.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {keys.API_VERSION}."},
            "kind": {"type": "string", "description": f"Always {keys.KIND}."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [rule.to_manifest() for rule in RULES[""]],
    }


def render() -> str:
    """The text of the committed file."""
    body = yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=120, allow_unicode=True)
    return HEADER + body


def main(arguments: list[str] | None = None) -> int:
    """Write the CRD. With ``--check``, only compare, and return 1 if a copy is missing or differs."""
    parser = argparse.ArgumentParser(prog="python -m holdfast_contract.crd", description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(), help="root of the repository (default: here)")
    parser.add_argument("--check", action="store_true", help="compare with what is there and write nothing")
    options = parser.parse_args(arguments)
    text = render()
    stale = [target for target in TARGETS if not _is_current(options.root / target, text)]
    for target in stale:
        if options.check:
            print(
                f"{target}: differs from what the models generate; run python -m holdfast_contract.crd", file=sys.stderr
            )
        else:
            (options.root / target).parent.mkdir(parents=True, exist_ok=True)
            (options.root / target).write_text(text)
            print(f"{target}: written")
    return 1 if options.check and stale else 0


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
