"""What the wheel imports it asks for itself: nothing comes in only because another package happens to need it."""

from __future__ import annotations

import ast
import itertools
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from holdfast import installed

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


@pytest.mark.parametrize("distribution", installed.CHECKED)
def test_what_the_library_accepts_is_what_it_requires(distribution: str) -> None:
    first, below = installed.CHECKED[distribution]
    bounds = f">={'.'.join(map(str, first))},<{'.'.join(map(str, below)).removesuffix('.0')}"
    every = [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]
    assert f"{distribution}{bounds}" in every
    installed.require_checked(distribution)


@pytest.mark.parametrize("release", ["0.10.1", "0.11.0", "1.0.0rc1"])
def test_a_release_that_was_not_checked_is_refused(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "version", lambda _: release)
    installed.require_checked.cache_clear()
    with pytest.raises(ImportError, match=rf"jax: found {release}, allowed: >=0\.10\.2,<0\.11\.0"):
        installed.require_checked("jax")
