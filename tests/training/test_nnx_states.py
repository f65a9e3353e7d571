"""Flax NNX objects as a state: filled in place or through an abstract template, and compared leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from flax import nnx

import holdfast
from holdfast import errors
from holdfast.state.leaves import from_bytes
from holdfast.state.nnx import abstractly, arrays_of, holds_objects, put

BATCH = jnp.linspace(0.0, 1.0, 12).reshape(4, 3)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, *, deep: bool = False, width: int = 4) -> None:
        self.inner = nnx.Linear(3, width, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, 1, rngs=rngs) if deep else None

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = self.drop(self.inner(x))
        for block in self.blocks:
            hidden = block(hidden)
        normal: jax.Array = self.norm(hidden)
        return normal


def build(seed: int = 0, **options: Any) -> dict[str, Any]:
    model = Net(nnx.Rngs(seed), **options)
    return {"model": model, "optimizer": nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)}


@nnx.jit
def train_step(model: Net, optimizer: nnx.Optimizer[Net]) -> Any:
    loss, gradients = nnx.value_and_grad(lambda m: jnp.square(m(BATCH) - 1.0).mean())(model)
    optimizer.update(model, gradients)
    return loss


def train(path: Path, source: Any, until: int, **options: Any) -> tuple[Any, list[float]]:
    losses = []
    with holdfast.session(path, every=holdfast.every_steps(5), keep=holdfast.keep(latest=9)) as run:
        state, _ = run.restore(source, **options)
        for step in run.steps(until=until):
            loss = train_step(state["model"], state["optimizer"])
            losses.append(float(loss))
            run.commit(step, state, metrics={"loss": loss})
    return state, losses


def same(one: Any, other: Any) -> bool:
    def plain(leaf: Any) -> Any:
        return jax.random.key_data(leaf) if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key) else leaf

    first, second = jax.tree.map(plain, arrays_of(one)), jax.tree.map(plain, arrays_of(other))
    structures: list[Any] = [jax.tree.structure(first), jax.tree.structure(second)]
    return structures[0] == structures[1] and all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )


SOURCES: dict[str, Callable[[], Any]] = {
    "objects": lambda: build(5),
    "function": lambda: lambda: build(5),
    "jitted function": lambda: nnx.jit(lambda: build(5)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_model_optimizer_and_random_streams_resume_bit_for_bit(tmp_path: Path, source: Callable[[], Any]) -> None:
    whole, losses = train(tmp_path / "whole", build, 12)
    train(tmp_path / "broken", build, 7)
    given = source()
    resumed, rest = train(tmp_path / "broken", given, 12)
    assert rest == losses[7:]
    assert same(resumed, whole)
    if not callable(given):
        assert resumed["model"] is given["model"]


def test_with_shardings_a_function_is_not_run_before_a_restore(tmp_path: Path) -> None:
    saved, _ = train(tmp_path, build, 3)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    made: list[bool] = []

    def watched() -> Any:
        state = build(9)
        made.append(isinstance(state["model"].inner.kernel.get_value(), jax.core.Tracer | jax.ShapeDtypeStruct))
        return state

    resumed, _ = train(tmp_path, watched, 3, shardings=sharding)
    assert same(resumed, saved)
    assert made
    assert all(made), "numbers were made that nobody needed"
    fresh, _ = train(tmp_path / "fresh", watched, 0, shardings=sharding)
    assert same(fresh, build(9))


def test_only_arrays_are_stored_under_plain_names(tmp_path: Path) -> None:
    train(tmp_path, build, 1)
    (record,) = tmp_path.glob("default/1/1/STRUCTURE.json")
    paths = {leaf.path for leaf in from_bytes(record.read_bytes()).leaves}
    assert "['model']['blocks']['1']['kernel']" in paths
    assert "['optimizer']['opt_state']['0']['mu']['inner']['kernel']" in paths
    assert not [path for path in paths if "value" in path or "graph" in path]


def test_a_changed_model_is_reported_leaf_by_leaf(tmp_path: Path) -> None:
    train(tmp_path, build, 1)
    with pytest.raises(errors.StructureMismatch) as caught:
        train(tmp_path, lambda: build(deep=True), 2)
    error = caught.value
    assert error.leaf == "['model']['head']['bias']"
    assert error.expected == "array float32[1]"
    assert error.found == "no such leaf"
    assert "new_leaves=['model.head.bias']" in error.remedy
    assert {line.partition(":")[0] for line in error.others} == {
        "['model']['head']['kernel']",
        *(f"['optimizer']['opt_state']['0']['{m}']['head']['{w}']" for m in ("mu", "nu") for w in ("bias", "kernel")),
    }
    with pytest.raises(errors.StructureMismatch, match="float32\\[3,8\\]"):
        train(tmp_path, lambda: build(width=8), 2)


def test_layers_may_be_added_and_removed_when_named(tmp_path: Path) -> None:
    saved, _ = train(tmp_path, build, 3)
    kernel = np.asarray(saved["model"].inner.kernel.get_value())
    names = ["model.head", "optimizer.opt_state.0.*.head"]
    grown, _ = train(tmp_path, lambda: build(8, deep=True), 3, new_leaves=names)
    assert np.array_equal(grown["model"].inner.kernel.get_value(), kernel)
    fresh = build(8, deep=True)
    assert np.array_equal(grown["model"].head.kernel.get_value(), fresh["model"].head.kernel.get_value())
    train(tmp_path, lambda: build(8, deep=True), 4, new_leaves=names)
    with pytest.raises(errors.StructureMismatch, match="dropped_leaves="):
        train(tmp_path, build, 4)
    shrunk, _ = train(tmp_path, build, 4, dropped_leaves=names)
    assert shrunk["model"].head is None


def test_a_shared_variable_is_stored_once_and_stays_shared() -> None:
    first, second = Net(nnx.Rngs(0)), Net(nnx.Rngs(1))
    second.inner = first.inner
    tree = {"first": first, "n": 3, "second": second}
    arrays = arrays_of(tree)
    assert "inner" in arrays["first"]
    assert "inner" not in arrays["second"]
    assert holds_objects(tree)
    doubled = jax.tree.map(lambda x: x if not hasattr(x, "dtype") or x.dtype != jnp.float32 else x * 2, arrays)
    put(tree, doubled)
    assert first.inner is second.inner
    assert np.array_equal(first.inner.kernel.get_value(), doubled["first"]["inner"]["kernel"])


def test_an_array_outside_of_a_variable_is_refused_by_name() -> None:
    class Odd(nnx.Module):
        def __init__(self) -> None:
            self.raw = jnp.arange(3.0)

    with pytest.raises(errors.UnsupportedLeaf, match=r"Odd.raw: found .* hold it in an nnx.Variable"):
        arrays_of({"model": Odd()})


def test_variables_and_streams_of_their_own_are_stored_too() -> None:
    def made(scale: float) -> dict[str, Any]:
        return {"alone": nnx.Param(jnp.ones(2) * scale), "rngs": nnx.Rngs(int(scale)), "plain": scale}

    template = put(abstractly(lambda: made(1.0)) | {"plain": 0.0}, arrays_of(made(3.0)))
    assert same(template, made(3.0))
    assert template["plain"] == 3.0
