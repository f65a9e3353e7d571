"""Permissions, as a process meets them that is not root: found before the first step, never taken for damage."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_contract.exits import ExitCode
from tests.support.storage import unprivileged
from tests.support.storage.unprivileged import in_process_of_nobody, public_folder


@pytest.fixture
def storage() -> Iterator[Path]:
    with public_folder() as folder:
        yield folder


def test_a_path_that_may_not_be_written_is_found_before_the_first_step(storage: Path) -> None:
    storage.chmod(0o555)
    told = in_process_of_nobody(unprivileged.claim, storage / "run")
    assert (told["error"], told["errno"], told["code"]) == ("StorageUnusable", errno.EACCES, ExitCode.STORAGE)
    assert str(storage) in told["path"]
    assert os.strerror(errno.EACCES) in told["text"]
    storage.chmod(0o755)
    assert in_process_of_nobody(unprivileged.claim, storage / "run") == {"error": ""}


def test_a_run_whose_owner_record_may_not_be_replaced_is_found_before_the_first_step(storage: Path) -> None:
    assert in_process_of_nobody(unprivileged.claim, storage / "run") == {"error": ""}
    (storage / "run").chmod(0o555)
    told = in_process_of_nobody(unprivileged.claim, storage / "run")
    assert (told["error"], told["errno"]) == ("StorageUnusable", errno.EACCES)


def test_a_folder_that_is_closed_while_training_fails_the_save_only(storage: Path) -> None:
    told = in_process_of_nobody(unprivileged.save_into_a_folder_that_was_closed, storage / "run")
    assert (told["error"], told["errno"], told["code"]) == ("SaveError", errno.EACCES, ExitCode.STORAGE)
    assert told["path"].startswith(str(storage / "run" / "1"))
    assert told["steps"] == [3, 1]


def test_a_file_that_may_not_be_read_is_no_damage(storage: Path) -> None:
    told = in_process_of_nobody(unprivileged.restore_from_what_may_not_be_read, storage / "run")
    assert (told["error"], told["errno"]) == ("StorageError", errno.EACCES), "not a walk back to an older step"
    assert told["closed"] in told["text"]
    assert (told["step"], told["equal"]) == (2, True)


def test_what_may_not_be_deleted_stays_whole(storage: Path) -> None:
    told = in_process_of_nobody(unprivileged.delete_from_a_folder_that_was_closed, storage / "run")
    assert (told["errno"], told["steps"]) == (errno.EACCES, [1])
