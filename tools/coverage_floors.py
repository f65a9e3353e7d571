"""Combine what the processes of a test run measured, print the coverage of each group of files, and hold its floor.

Groups and floors are in pyproject.toml: per cent of lines and of branches, each over all files of a group.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
LEAST_COVERED: Final = 5


@dataclass(frozen=True)
class Counts:
    """Covered and all lines, covered and all branches."""

    covered_lines: int = 0
    lines: int = 0
    covered_branches: int = 0
    branches: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def line_percent(self) -> float:
        """Per cent of lines; 100 where there are none."""
        return 100 * self.covered_lines / self.lines if self.lines else 100.0

    @property
    def branch_percent(self) -> float:
        """Per cent of branches; 100 where there are none."""
        return 100 * self.covered_branches / self.branches if self.branches else 100.0


@dataclass(frozen=True)
class Group:
    """Files that are held to one floor."""

    name: str
    line_floor: float
    branch_floor: float
    files: Mapping[str, Counts]

    @property
    def total(self) -> Counts:
        """Of all files together."""
        return sum(self.files.values(), Counts())

    def problems(self) -> Iterator[str]:
        """What is wrong, if something is."""
        if not self.files:
            yield f"tool.coverage-floors.{self.name}.files: found no measured file, allowed: patterns that match some"
        if (found := self.total.line_percent) < self.line_floor:
            yield f"coverage of the lines of {self.name}: found {found:.1f} %, allowed: {self.line_floor:g} % or more"
        if (found := self.total.branch_percent) < self.branch_floor:
            yield f"coverage of the branches of {self.name}: found {found:.1f} %, allowed: {self.branch_floor:g} % or more"


def groups_of(report: Mapping[str, Any], floors: Mapping[str, Any], root: Path) -> Iterator[Group]:
    """The groups of a project's settings, with the counts of a report as ``coverage json`` writes it."""
    measured = {str(root / name): counts_of(file["summary"]) for name, file in report["files"].items()}
    for name, settings in floors.items():
        matching = {str(file) for pattern in settings["files"] for file in root.glob(pattern)}
        files = {str(Path(file).relative_to(root)): measured[file] for file in sorted(matching & measured.keys())}
        yield Group(name, settings["lines"], settings["branches"], files)


def counts_of(summary: Mapping[str, int]) -> Counts:
    """Counts of one file."""
    return Counts(
        summary["covered_lines"], summary["num_statements"], summary["covered_branches"], summary["num_branches"]
    )


def table(groups: Iterable[Group]) -> Iterator[str]:
    """A line for each group, and below it its files with the lowest coverage."""
    yield f"{'coverage, per cent':<58}{'lines':>8}{'branches':>10}{'floors':>10}"
    for group in groups:
        yield f"{group.name:<58}{figures(group.total)}{group.line_floor:>6g}{group.branch_floor:>4g}"
        lowest = sorted(group.files.items(), key=lambda item: (item[1].branch_percent, item[1].line_percent))
        yield from (f"  {file:<56}{figures(counts)}" for file, counts in lowest[:LEAST_COVERED])


def figures(counts: Counts) -> str:
    """Both figures in their columns."""
    return f"{counts.line_percent:>8.1f}{counts.branch_percent:>10.1f}"


def measured_report(root: Path) -> Mapping[str, Any]:
    """What ``coverage json`` says of the data that the processes left.

    Some were killed while they wrote theirs, which ``combine`` warns of and passes over: its words are shown only if it
    fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coverage.json"
        for command in (["combine", "--quiet"], ["json", "--quiet", "-o", str(file)]):
            done = subprocess.run(
                [sys.executable, "-m", "coverage", *command], cwd=root, check=False, capture_output=True, text=True
            )
            if done.returncode != 0:
                sys.exit(f"coverage {command[0]}: {done.stdout}{done.stderr}")
        report: Mapping[str, Any] = json.loads(file.read_text())
    return report


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-floors", action="store_true", help="only print: not all tests have run")
    options = parser.parse_args()
    floors = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage-floors"]
    groups = list(groups_of(measured_report(ROOT), floors, ROOT))
    sys.stdout.writelines(f"{line}\n" for line in table(groups))
    problems = [problem for group in groups for problem in group.problems()]
    if problems and not options.no_floors:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
