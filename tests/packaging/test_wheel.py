"""The wheel: built as documented, with all of the four packages and nothing else."""

from __future__ import annotations

import configparser
import email
import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES: Final = {
    "holdfast": ROOT / "trainer_lib",
    "holdfast_agent": ROOT / "trainer_lib",
    "holdfast_contract": ROOT / "trainer_lib",
    "holdfast_operator": ROOT / "operator",
}
"""The packages of the wheel and where each has its source."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel as `make wheel` builds it."""
    out = tmp_path_factory.mktemp("dist")
    uv = subprocess.run([sys.executable, ROOT / "tools" / "uv.py"], check=True, capture_output=True, text=True)
    build = [uv.stdout.strip(), "build", "--wheel", "--python", sys.executable, "--out-dir", out]
    built = subprocess.run(build, cwd=ROOT, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (file,) = out.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        yield archive


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_the_wheel_holds_every_file_of_the_four_packages_and_no_other(wheel: zipfile.ZipFile) -> None:
    expected = {
        str(file.relative_to(source))
        for package, source in SOURCES.items()
        for file in (source / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {path for path in wheel.namelist() if ".dist-info/" not in path} == expected
    assert {f"{package}/py.typed" for package in SOURCES} <= expected


def test_the_wheel_has_a_name_of_its_own_and_both_extras(wheel: zipfile.ZipFile) -> None:
    found = email.message_from_string(metadata(wheel, "METADATA"))
    assert found["Name"] == "holdfast-training"
    assert found.get_all("Provides-Extra") == ["operator", "trainer"]
    required = [line for line in found.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert required == [], "the agent starts in milliseconds: the base needs nothing"


def test_the_command_of_the_wheel_exists(wheel: zipfile.ZipFile) -> None:
    entry_points = configparser.ConfigParser()
    entry_points.read_string(metadata(wheel, "entry_points.txt"))
    assert dict(entry_points["console_scripts"]) == {"holdfast": "holdfast.cli:main"}
    assert callable(importlib.import_module("holdfast.cli").main)


@pytest.mark.parametrize("page", ["README.md", "docs/library.md", "charts/holdfast/templates/NOTES.txt"])
def test_documents_install_only_what_exists(page: str) -> None:
    """From the checkout, or the wheel that `make wheel` builds: nothing of this project is on an index yet."""
    installs = re.findall(r"pip install +\"?([^\s\"`]+)", (ROOT / page).read_text())
    built = f"dist/holdfast_training-{PROJECT['version']}-py3-none-any.whl[trainer]"
    assert [target for target in installs if target not in {".[trainer]", built}] == []
