"""The exception tree: complete as drawn, one home, and every error survives pickling and copying."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import errors
from holdfast_contract.manifest import CheckpointRef, Owner, Rejection

OWNER = Owner(job_uid="uid", namespace="ml", name="lm", attempt=3)
EXAMPLES = [
    errors.HoldfastError("words"),
    errors.StorageError("is full", path=Path("/c"), errno=28),
    errors.StorageUnusable("is not there", path=Path("/c")),
    errors.NotFinished(Path("/c/7"), found="no metadata"),
    errors.SaveError("disk", attempt=2, step=7, rank=1, path=Path("/c"), errno=5),
    errors.SaveTimeout("late", attempt=2, step=7, rank=1, path=Path("/c")),
    errors.RequestFailed("too-late", "no time"),
    errors.RestoreError("words"),
    errors.DamagedCheckpoint(Path("/c/7"), reason="size"),
    errors.NoValidCheckpoint(Path("/c"), [Rejection(1, 7, "size")]),
    errors.StructureMismatch("a.b", expected="f32[2]", found="f32[3]", remedy="rename", others=["c"]),
    errors.UnsupportedLeaf("a.b", found="a string"),
    errors.ConfigurationError("path: found 3, allowed: a path"),
    errors.RestoreForgotten(Path("/c"), newest=CheckpointRef(1, 7), remedy="call restore"),
    errors.StepsNotCommitted(3, 7),
    errors.StepsNotSaved(3, 7, reason="donated", newest=CheckpointRef(1, 2)),
    errors.RanksDisagree("the last commit", found={0: "step 7", 1: "step 8"}),
    errors.OwnershipError("words"),
    errors.ForeignRun(Path("/c"), owner=OWNER, recorded=OWNER),
    errors.Superseded(Path("/c"), attempt=2, found="attempt 3"),
    errors.PeerLost("the others", limit_seconds=2.0, missing=[1]),
    errors.PeerLeft("process 1 failed"),
    errors.CoordinationLost("get", "UNAVAILABLE"),
    errors.WrongWorld(expected="attempt 2", found="attempt 3"),
]


def subclasses(kind: type[errors.HoldfastError]) -> Iterator[type[errors.HoldfastError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


def test_every_error_is_in_one_home_and_has_an_example() -> None:
    everyone = set(subclasses(errors.HoldfastError))
    assert {kind.__module__ for kind in everyone} == {"holdfast.errors"}
    assert {type(example) for example in EXAMPLES} == everyone


def test_the_drawing_is_the_tree() -> None:
    drawn = re.findall(r"^ *(?:[│ ]*[├└]── )?(\w+) +(?:(\d+)|exit_code)", errors.__doc__ or "", re.MULTILINE)
    assert {name for name, _ in drawn} == {kind.__name__ for kind in subclasses(errors.HoldfastError)}
    for name, code in drawn:
        if code:
            assert getattr(errors, name).exit_code == int(code), name


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_and_copying(error: errors.HoldfastError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)
        assert twin.exit_code == error.exit_code
