"""The coverage report: counts of a group are those of its files together, and a floor is held by lines and branches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools import coverage_floors


def report(**files: tuple[int, int, int, int]) -> dict[str, Any]:
    names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
    found = {f"package/{name}.py": {"summary": dict(zip(names, counts, strict=True))} for name, counts in files.items()}
    return {"files": found}


def group(tmp_path: Path, lines: float, branches: float, **files: tuple[int, int, int, int]) -> coverage_floors.Group:
    (tmp_path / "package").mkdir()
    for name in files:
        (tmp_path / "package" / f"{name}.py").touch()
    floors = {"things": {"files": ["package/**/*.py"], "lines": lines, "branches": branches}}
    (found,) = coverage_floors.groups_of(report(**files), floors, tmp_path)
    return found


def test_a_group_is_all_its_files_together(tmp_path: Path) -> None:
    found = group(tmp_path, 75, 70, large=(90, 100, 30, 30), small=(0, 20, 0, 10), empty=(0, 0, 0, 0))
    assert found.total == coverage_floors.Counts(90, 120, 30, 40)
    assert (found.total.line_percent, found.total.branch_percent) == (75, 75)
    assert list(found.problems()) == []
    lines = [line.split() for line in coverage_floors.table([found])]
    assert lines[1:3] == [["things", "75.0", "75.0", "75", "70"], ["package/small.py", "0.0", "0.0"]]


def test_lines_and_branches_are_held_to_floors_of_their_own(tmp_path: Path) -> None:
    assert list(group(tmp_path, 90, 80, one=(89, 100, 79, 100)).problems()) == [
        "coverage of the lines of things: found 89.0 %, allowed: 90 % or more",
        "coverage of the branches of things: found 79.0 %, allowed: 80 % or more",
    ]


def test_a_pattern_that_matches_nothing_is_no_full_coverage(tmp_path: Path) -> None:
    (problem,) = group(tmp_path, 90, 90).problems()
    assert "tool.coverage-floors.things.files: found no measured file" in problem
