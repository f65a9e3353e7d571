"""The figures of `make shape`, on a small tree whose figures are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import shape

SOURCE = '''\
import typing


def documented(first, /, *rest, second=1, **more):
    """Puts `first` before `rest`; `second` and `more` change nothing."""
    return first


def terse(one, two, three):
    """Adds one and two."""

    def inner(four):
        return four

    return inner(one) + two + three


@typing.overload
def wide(value: int) -> int: ...
def wide(value):
    return value


class Thing:
    def __init__(self, size):
        self.size = size

    @staticmethod
    def made(size):
        """A thing."""
        return Thing(size)

    def grown(self, by):
        """A larger one."""
        return Thing(self.size + by)
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    package = tmp_path / "trainer_lib" / "holdfast"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "things.py").write_text(SOURCE)
    (package / "_private.py").write_text("def helper(): pass\n")
    return tmp_path


def functions(tree: Path) -> dict[str, shape.Function]:
    modules = shape.modules_of(tree / "trainer_lib" / "holdfast", tree)
    return {function.place.split()[1]: function for module in modules for function in module.functions}


def test_each_function_has_its_lines_and_parameters(tree: Path) -> None:
    found = {name: (function.lines, function.parameters) for name, function in functions(tree).items()}
    assert found == {
        "documented": (3, ("first", "rest", "second", "more")),
        "terse": (7, ("one", "two", "three")),
        "inner": (2, ("four",)),
        "wide": (2, ("value",)),
        "__init__": (2, ("size",)),
        "made": (3, ("size",)),
        "grown": (3, ("by",)),
        "helper": (1, ()),
    }


def test_public_is_what_a_reader_can_call_by_name(tree: Path) -> None:
    public = {name for name, function in functions(tree).items() if function.public}
    assert public == {"documented", "terse", "wide", "made", "grown"}


def test_a_docstring_names_its_parameters_or_does_not(tree: Path) -> None:
    found = functions(tree)
    assert found["documented"].names_parameters
    assert not found["terse"].names_parameters


def test_the_report_has_a_row_for_each_package_and_the_longest_of_all(tree: Path) -> None:
    lines = list(shape.report(tree))
    (row,) = (line.split() for line in lines if line.startswith("holdfast "))
    modules, parameters = ["1", "35", "35"], ["1", "4", "4"]
    assert row == ["holdfast", "3", "8", "2.5", "7", "7", *modules, *parameters, "4/5", "80%", "1/2", "50%"]
    assert {line.split()[0] for line in lines[3:9]} == set(shape.PACKAGES)
    assert lines[lines.index("longest functions") + 1].split() == ["7", "trainer_lib/holdfast/things.py:9", "terse"]


def test_a_figure_beyond_its_aim_is_marked() -> None:
    assert shape.distribution([1, 2, 30], shape.Aim(median=2, p90=29)).split() == ["2", "30!", "30"]
    assert shape.distribution([], shape.Aim()).split() == ["-", "-", "-"]
