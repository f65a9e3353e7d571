"""What the wheel imports it asks for itself: nothing comes in only because another package happens to need it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"holdfast", "holdfast_agent", "holdfast_contract", "holdfast_operator"}
BROUGHT_BY_THE_PROGRAM = {"flax"}
"""Touched only if the program hands over objects of it, so that it is there."""


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """(package, file) of every import in a folder, also those inside functions."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            yield from ((name.split(".")[0], str(file.relative_to(ROOT))) for name in names)


def declared(*extras: str) -> set[str]:
    wanted = [*PROJECT["dependencies"], *(r for extra in extras for r in PROJECT["optional-dependencies"][extra])]
    return {normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) for requirement in wanted}


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("operator/holdfast_operator", ("operator",)),
        ("trainer_lib/holdfast_contract", ("operator",)),
        ("trainer_lib/holdfast_agent", ()),
        ("trainer_lib/holdfast", ("trainer",)),
    ],
)
def test_every_package_that_is_imported_is_asked_for(folder: str, extras: tuple[str, ...]) -> None:
    providers = packages_distributions()
    found = dict(imported(ROOT / folder))
    others = set(found) - OURS - set(sys.stdlib_module_names) - BROUGHT_BY_THE_PROGRAM
    missing = {name: found[name] for name in others if not {normal(d) for d in providers[name]} & declared(*extras)}
    assert missing == {}, "imported, and not in the extra: list it in pyproject.toml"
