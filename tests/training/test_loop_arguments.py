"""What a program gives to the calls of its loop: taken as it is meant, or refused at the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import holdfast
from holdfast import errors
from holdfast.training.arguments import as_flag, as_step
from holdfast_contract.manifest import from_bytes
from tests.support.training.tiny_train import Counter

BETTER = {3, 6}
KINDS = [np.bool_, jnp.asarray, np.array]


def start() -> dict[str, Any]:
    return {"n": jnp.int32(0)}


def pinned(path: Path) -> set[int]:
    manifests = (path / "default/1").glob("*/HOLDFAST.json")
    return {found.step for found in (from_bytes(p.read_bytes()) for p in manifests) if found.pinned}


@pytest.mark.parametrize("kind", KINDS, ids=["numpy", "jax", "array"])
def test_a_comparison_says_what_to_keep(tmp_path: Path, kind: Any) -> None:
    with holdfast.session(tmp_path, every=holdfast.only_at_end(), keep=holdfast.keep(latest=1)) as run:
        run.restore(start)
        for step in run.steps(until=jnp.int32(9)):  # type: ignore[arg-type]
            handle = run.commit(np.int64(step), start(), keep=kind(step in BETTER), save=kind(False))  # type: ignore[arg-type]
            assert (handle is not None) == (step in BETTER or step == 9)
            if handle is not None:
                handle.result(30)
    assert pinned(tmp_path) == BETTER


def test_a_wrong_flag_or_step_is_refused_at_the_call(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"keep": np.array([True])}, {"save": "yes"}, {"keep": 1}, {"keep": None}]
    with holdfast.session(tmp_path) as run:
        run.restore(start)
        for step in run.steps(until=1):
            for arguments in wrong:
                with pytest.raises(TypeError, match=f"{next(iter(arguments))}: found"):
                    run.commit(step, start(), **arguments)
            for other in (1.0, True, jnp.float32(1), "1"):
                with pytest.raises(TypeError, match="step: found"):
                    run.commit(other, start())  # type: ignore[arg-type]
            run.commit(step, start())
        with pytest.raises(TypeError, match=r"until: found 3\.5"):
            next(iter(run.steps(until=3.5)))  # type: ignore[arg-type]
    with holdfast.Checkpointer(tmp_path / "own", start()) as checkpointer:
        for other in (3.0, False):
            with pytest.raises(TypeError, match="step: found"):
                checkpointer.save(other, model=start())  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="keep: found"):
            checkpointer.save(3, model=start(), keep="yes")  # type: ignore[arg-type]
        handle = checkpointer.save(jnp.int32(3), model=start(), keep=jnp.asarray(True))  # type: ignore[arg-type]
        assert handle.result(30).step == 3


def test_a_step_to_restore_may_be_of_any_kind(tmp_path: Path) -> None:
    with holdfast.session(tmp_path, every=holdfast.every_steps(1)) as run:
        run.restore(start)
        for step in run.steps(until=3):
            run.commit(step, start())
    with holdfast.session(tmp_path) as run:
        with pytest.raises(TypeError, match=r"step: found 2\.0"):
            run.restore(start, step=2.0)  # type: ignore[call-overload]
        run.restore(start, step=np.int64(2))  # type: ignore[call-overload]
        assert run.newest is not None
        assert run.newest.step == 2


def test_values_of_jax_count_as_what_they_are() -> None:
    assert as_flag("save", jnp.asarray(True)) is True
    assert as_step("step", jnp.int32(3)) == 3
    for wrong in (jnp.float32(3), jnp.asarray(True), jnp.arange(1)):
        with pytest.raises(TypeError, match="step: found"):
            as_step("step", wrong)


@pytest.mark.parametrize("restored_with", [True, False])
def test_data_on_one_side_only_is_refused_at_the_first_commit(tmp_path: Path, restored_with: bool) -> None:
    data = Counter()
    with holdfast.session(tmp_path) as run:
        run.restore(start, data if restored_with else None)
        for step in run.steps(until=1):
            with pytest.raises(errors.ConfigurationError, match=r"data: found .*`restore`.*pass"):
                run.commit(step, start(), data=None if restored_with else data)
            run.commit(step, start(), data=Counter() if restored_with else None)


def test_data_at_the_first_commit_and_not_at_the_next_is_refused(tmp_path: Path) -> None:
    with holdfast.session(tmp_path) as run:
        for step in run.steps(until=2):
            if step == 2:
                with pytest.raises(errors.ConfigurationError, match="data: found None"):
                    run.commit(step, start())
            run.commit(step, start(), data=Counter())
