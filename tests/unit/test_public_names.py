"""What `import holdfast` offers: every name, its type for users' annotations, the version, and nothing heavy."""

from __future__ import annotations

import importlib.metadata
import inspect
import types

import holdfast
from holdfast import errors


def test_every_public_name_exists_and_comes_from_holdfast() -> None:
    for name in holdfast.__all__:
        value = getattr(holdfast, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__.startswith("holdfast."), name


def test_no_function_hides_the_module_that_defines_it() -> None:
    for name in holdfast.__all__:
        value = getattr(holdfast, name)
        assert name == "errors" or not isinstance(value, types.ModuleType), name


def test_every_error_can_be_caught_by_its_public_name() -> None:
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.HoldfastError):
            assert getattr(holdfast, name) is value
            assert name in holdfast.__all__


def test_the_version_is_the_distributions() -> None:
    assert holdfast.__version__ == importlib.metadata.version("holdfast-training")
