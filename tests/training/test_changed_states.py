"""What a program may change in its state between two attempts: what it names, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest
from flax.training.train_state import TrainState
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import errors
from holdfast.state.changes import Allowed, compare
from holdfast.state.leaves import Leaf, LeafKind, Structure


def restored(path: Path, state: Any, *, until: int, **options: Any) -> Any:
    with holdfast.session(path) as run:
        found, _ = run.restore(lambda: state, **options)
        for step in run.steps(until=until):
            run.commit(step, found)
    return found


class Mlp(nn.Module):
    layers: int = 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.layers):
            x = nn.relu(nn.Dense(4)(x))
        return x


def linen_state(layers: int, seed: int) -> dict[str, Any]:
    params = Mlp(layers).init(jax.random.key(seed), jnp.ones((1, 4)))
    return {"variables": params, "opt": optax.adam(1e-3).init(params)}


def equal(one: Any, other: Any) -> bool:
    pairs: list[tuple[Any, Any]] = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    return all(bool(np.array_equal(a, b)) for a, b in pairs)


def test_a_linen_layer_is_added_and_removed_when_named(tmp_path: Path) -> None:
    old = linen_state(2, 0)
    restored(tmp_path, old, until=1)
    deeper = linen_state(3, 1)
    with pytest.raises(errors.StructureMismatch) as caught:
        restored(tmp_path, deeper, until=2)
    assert caught.value.leaf == "['opt'][0].mu['params']['Dense_2']['bias']"
    assert len(caught.value.others) == 5
    names = ["variables.params.Dense_2", "opt.0.*.params.Dense_2"]
    grown = restored(tmp_path, deeper, until=2, new_leaves=names)
    for name, source in (("Dense_0", old), ("Dense_1", old), ("Dense_2", deeper)):
        assert equal(grown["variables"]["params"][name], source["variables"]["params"][name])
    shrunk = restored(tmp_path, linen_state(2, 7), until=3, dropped_leaves=names)
    assert equal(shrunk["variables"], old["variables"])


def test_a_leaf_of_another_shape_begins_anew_only_if_it_may_be_dropped_and_new(tmp_path: Path) -> None:
    restored(tmp_path, {"w": jnp.ones(3), "head": jnp.ones((3, 5)), "n": 4}, until=1)
    wider: dict[str, Any] = {"w": jnp.zeros(3), "head": jnp.full((3, 7), 2.0), "n": 0}
    with pytest.raises(errors.StructureMismatch, match=r"new_leaves=\['head'\] and dropped_leaves=\['head'\]"):
        restored(tmp_path, wider, until=1)
    with pytest.raises(errors.StructureMismatch, match=r"anew with dropped_leaves=\['head'\]"):
        restored(tmp_path, wider, until=1, new_leaves=["head"])
    found = restored(tmp_path, wider, until=1, new_leaves=["head"], dropped_leaves=["head"])
    assert np.array_equal(found["head"], wider["head"])
    assert np.array_equal(found["w"], jnp.ones(3))
    assert found["n"] == 4


def train_state(layers: int) -> TrainState:
    model = Mlp(layers)
    params = model.init(jax.random.key(layers), jnp.ones((1, 4)))
    return TrainState.create(  # type: ignore[no-untyped-call,no-any-return]
        apply_fn=model.apply, params=params, tx=optax.adam(1e-3)
    )


def test_a_train_state_with_an_optimizer_built_anew_grows_by_a_named_layer(tmp_path: Path) -> None:
    with holdfast.session(tmp_path) as run:
        old, _ = run.restore(lambda: train_state(1))
        for step in run.steps(until=1):
            old = old.apply_gradients(grads=old.params)
            run.commit(step, old)
    with holdfast.session(tmp_path) as run:
        grown, _ = run.restore(lambda: train_state(2), new_leaves=["params.*.Dense_1", "opt_state.*.Dense_1"])
        for step in run.steps(until=2):
            run.commit(step, grown)
    assert grown.step == 1
    assert equal(grown.params["params"]["Dense_0"], old.params["params"]["Dense_0"])
    assert equal(grown.params["params"]["Dense_1"], train_state(2).params["params"]["Dense_1"])


def test_a_path_that_is_no_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="new_leaves, dropped_leaves: found 'head', allowed: a list of paths"):
        restored(tmp_path, {"w": jnp.ones(3)}, until=1, new_leaves="head")


LEAF_NAMES = st.sampled_from(["a", "b", "a.x", "a.y", "ab", "b.x.y"])
LEAVES = st.dictionaries(LEAF_NAMES, st.sampled_from([(2,), (3,)]))
PATTERNS = st.lists(st.sampled_from(["a", "b", "a.*", "*.x", "ab", "*"]), max_size=2).map(tuple)


def structure(shapes: dict[str, tuple[int, ...]]) -> Structure:
    paths = {name: "".join(f"['{part}']" for part in name.split(".")) for name in shapes}
    return Structure(tuple(Leaf(paths[n], LeafKind.ARRAY, shape, "float32") for n, shape in shapes.items()))


def covers(name: str, patterns: tuple[str, ...]) -> bool:
    def one(pattern: str) -> bool:
        if pattern == "*":
            return True
        if pattern == "a.*":
            return name.startswith("a.")
        if pattern == "*.x":
            return name.endswith(".x") or ".x." in name
        return name == pattern or name.startswith(f"{pattern}.")

    return any(one(p) for p in patterns)


@given(there=LEAVES, here=LEAVES, new=PATTERNS, dropped=PATTERNS)
def test_every_difference_is_allowed_by_name_or_an_error(
    there: dict[str, tuple[int, ...]], here: dict[str, tuple[int, ...]], new: Any, dropped: Any
) -> None:
    differing = {n for n in {*there, *here} if there.get(n) != here.get(n)}
    refused = {n for n in differing if (n in here and not covers(n, new)) or (n in there and not covers(n, dropped))}
    if refused:
        with pytest.raises(errors.StructureMismatch) as caught:
            compare(structure(there), structure(here), Allowed(new, dropped))
        assert len(caught.value.others) + 1 == len(refused)
        return
    changed = compare(structure(there), structure(here), Allowed(new, dropped))
    assert len(changed.new) == len(differing & {*here})
    assert len(changed.dropped) == len(differing & {*there})
