"""Print the shape of the sources: how long functions and modules are, how many parameters, how much is documented.

Standard library only. CONTRIBUTING.md says what good looks like; a figure beyond its aim is marked with "!".
"""

from __future__ import annotations

import argparse
import ast
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = {
    "holdfast": "trainer_lib/holdfast",
    "holdfast_agent": "trainer_lib/holdfast_agent",
    "holdfast_contract": "trainer_lib/holdfast_contract",
    "holdfast_operator": "operator/holdfast_operator",
    "localkube": "localkube/localkube",
    "tests": "tests",
}
"""Rows of the table, with the folder of each."""
LONGEST: Final = 5
MANY_PARAMETERS: Final = 3
"""From this number on, a docstring names each parameter."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Aim:
    """What a distribution may reach: median, 90th percentile and maximum; None where nothing is asked."""

    median: float | None = None
    p90: float | None = None
    maximum: float | None = None


AIMS: Final = {
    "function lines": Aim(median=10, p90=35),
    "module lines": Aim(maximum=350),
    "parameters": Aim(maximum=6),
}


@dataclass(frozen=True)
class Function:
    """One ``def``. Lines are those from ``def`` to the end, docstring included; ``self`` and ``cls`` do not count."""

    place: str
    lines: int
    parameters: tuple[str, ...]
    public: bool
    docstring: str | None

    @property
    def names_parameters(self) -> bool:
        """Whether the docstring names each parameter."""
        return all(re.search(rf"\b{re.escape(name)}\b", self.docstring or "") for name in self.parameters)


@dataclass(frozen=True)
class Module:
    """One source file."""

    place: str
    lines: int
    functions: tuple[Function, ...]


def modules_of(folder: Path, root: Path) -> Iterator[Module]:
    """Every source file below a folder, named relative to the root."""
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        place = str(file.relative_to(root))
        inside = file.relative_to(folder).with_suffix("").parts
        public = not any(is_private(part) for part in inside if part != "__init__")
        functions = tuple(functions_of(ast.parse(text, filename=place), place, public=public))
        yield Module(place, len(text.splitlines()), functions)


def functions_of(parent: ast.AST, place: str, *, public: bool) -> Iterator[Function]:
    """Every function below a node, methods and nested ones too; a nested one is never public, nor is an overload."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Definition):
            if is_overload(node):
                continue
            visible = public and not is_private(node.name)
            yield Function(
                place=f"{place}:{node.lineno} {node.name}",
                lines=(node.end_lineno or node.lineno) - node.lineno + 1,
                parameters=parameters_of(node, method=isinstance(parent, ast.ClassDef)),
                public=visible,
                docstring=ast.get_docstring(node),
            )
            yield from functions_of(node, place, public=False)
        elif isinstance(node, ast.ClassDef):
            yield from functions_of(node, place, public=public and not is_private(node.name))
        else:
            yield from functions_of(node, place, public=public)


def is_private(name: str) -> bool:
    """Whether a name begins with an underscore; ``__init__`` and its like count as private, for readers call the class."""
    return name.startswith("_")


def is_overload(node: Definition) -> bool:
    """Whether this is one of several signatures of a function that is defined further down."""
    return any(ast.unparse(decorator).rpartition(".")[2] == "overload" for decorator in node.decorator_list)


def parameters_of(node: Definition, *, method: bool) -> tuple[str, ...]:
    """Names of all parameters; of a method, without the object or class that it belongs to."""
    positional = [*node.args.posonlyargs, *node.args.args]
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
    if method and not static:
        positional = positional[1:]
    rest = [node.args.vararg, *node.args.kwonlyargs, node.args.kwarg]
    return tuple(argument.arg for argument in (*positional, *rest) if argument is not None)


def distribution(values: Sequence[int], aim: Aim) -> str:
    """Median, 90th percentile (nearest rank) and maximum."""
    if not values:
        return " ".join(f"{'-':>6}" for _ in range(3))
    ordered = sorted(values)
    figures = (statistics.median(ordered), ordered[math.ceil(0.9 * len(ordered)) - 1], ordered[-1])
    return " ".join(marked(value, aim=at_most) for value, at_most in zip(figures, vars(aim).values(), strict=True))


def marked(value: float, *, aim: float | None) -> str:
    """A figure in its column, with "!" behind one that is beyond its aim."""
    beyond = aim is not None and value > aim
    return f"{value:>5g}{'!' if beyond else ' '}"


def share(functions: Sequence[Function], holds: Callable[[Function], bool]) -> str:
    """How many of the functions something holds for."""
    if not functions:
        return f"{'-':>14}"
    true = sum(holds(function) for function in functions)
    return f"{f'{true}/{len(functions)}':>9} {true / len(functions):>4.0%}"


def row(name: str, modules: Sequence[Module]) -> str:
    """One line of the table."""
    functions = [function for module in modules for function in module.functions]
    public = [] if name == "tests" else [function for function in functions if function.public]
    many = [function for function in public if len(function.parameters) >= MANY_PARAMETERS]
    return "  ".join(
        (
            f"{name:<18}{len(modules):>5}{len(functions):>6}",
            distribution([function.lines for function in functions], AIMS["function lines"]),
            distribution([module.lines for module in modules], AIMS["module lines"]),
            distribution([len(function.parameters) for function in functions], AIMS["parameters"]),
            share(public, lambda function: function.docstring is not None),
            share(many, lambda function: function.names_parameters),
        )
    ).rstrip()


def heading() -> Iterator[str]:
    """What the columns mean, and the aims."""
    groups = "  ".join(f"{name:<20}" for name in AIMS)
    yield f"{'':<29}  {groups}  {'public functions,':>14}"
    columns = "  ".join("median    p90    max " for _ in AIMS)
    yield f"{'':<18}{'files':>5}{'defs':>6}  {columns}{'documented':>14}{f'each of {MANY_PARAMETERS}+ named':>18}"
    aims = "  ".join(
        " ".join(f"{'' if at_most is None else f'<={at_most:g}':>5} " for at_most in vars(aim).values())
        for aim in AIMS.values()
    )
    yield f"{'aim':<29}  {aims}".rstrip()


def longest(title: str, sized: Iterable[tuple[int, str]]) -> Iterator[str]:
    """The largest of something, each with its place."""
    yield ""
    yield title
    for size, place in sorted(sized, key=lambda pair: (-pair[0], pair[1]))[:LONGEST]:
        yield f"{size:>6}  {place}"


def report(root: Path) -> Iterator[str]:
    """The whole report about a checkout, line by line."""
    found = {name: list(modules_of(root / folder, root)) for name, folder in PACKAGES.items()}
    yield from heading()
    yield from (row(name, modules) for name, modules in found.items())
    modules = [module for group in found.values() for module in group]
    functions = [function for module in modules for function in module.functions]
    yield from longest("longest functions", ((function.lines, function.place) for function in functions))
    yield from longest("longest modules", ((module.lines, module.place) for module in modules))
    yield from longest("most parameters", ((len(function.parameters), function.place) for function in functions))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the checkout to measure (default: this one)")
    sys.stdout.writelines(f"{line}\n" for line in report(parser.parse_args().root.resolve()))


if __name__ == "__main__":
    main()
