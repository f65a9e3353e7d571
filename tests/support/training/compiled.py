"""One compilation cache for all trainings of a test run: most of them are the same few small programs."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import pytest

from holdfast_contract import keys

_VARIABLE: Final = "TESTS_COMPILED"
"""Tells the processes of a test run where it is; set by the first of them."""


def folder() -> Path:
    """Of this test run."""
    return Path(os.environ[_VARIABLE])


def environment() -> dict[str, str]:
    """For a training outside a pod: what an agent would say, and a user who shares the folder."""
    return {keys.ENV_COMPILE_CACHE: str(folder()), "JAX_COMPILATION_CACHE_DIR": str(folder())}


def share(config: pytest.Config) -> None:
    """Make the folder, for as long as the test run lasts, unless another process of it has."""
    if _VARIABLE not in os.environ:
        made = tempfile.mkdtemp(prefix="holdfast-compiled-")
        os.chmod(made, 0o777)  # pods may be other users'
        os.environ[_VARIABLE] = made
        config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))
