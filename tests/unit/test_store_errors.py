from __future__ import annotations

import inspect
import re

import pytest

from holdfast import errors
from holdfast_contract.exits import ExitCode

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.HoldfastError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_the_drawn_tree_is_the_real_one(kind: type[errors.HoldfastError]) -> None:
    tree = errors.__doc__ or ""
    line = next(line for line in tree.splitlines() if re.search(rf"\b{kind.__name__}\b", line))
    if kind is errors.HoldfastError:
        return
    assert re.search(rf"{kind.__name__} +{int(kind.exit_code)}\b", line), "the drawn exit code"
    depth = (len(line) - len(line.lstrip(" │├└─"))) // 4
    assert depth == len([c for c in kind.__mro__ if c in CLASSES]), "the drawn depth"


def test_every_exit_code_is_of_the_contract_and_none_means_success() -> None:
    for kind in CLASSES:
        assert isinstance(kind.exit_code, ExitCode)
        assert kind.exit_code not in {ExitCode.DONE, ExitCode.SAVED, ExitCode.NOT_SAVED}
