"""What may be in a state: every dtype and container comes back exactly, and plain Orbax can read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint import v1 as orbax_v1

from holdfast.store import UNPINNED
from holdfast.store.checkpoint_extras import CheckpointExtras
from holdfast_contract.runfolder import RunFolder
from tests.support.storage.states import bits, state_of, store_at

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "float16",
    "bfloat16",
    "float32",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
]


class Pair(NamedTuple):
    left: Any
    right: Any


@flax.struct.dataclass
class Struct:
    weights: Any
    name: str = flax.struct.field(pytree_node=False, default="static")  # type: ignore[no-untyped-call]


def _round_trip(root: Path, state: Any, wanted: Any = None) -> Any:
    store = store_at(root, RunFolder(root).highest_attempt() + 1)
    store.save(1, state).result(30)
    store.close()
    restored = store_at(root, RunFolder(root).highest_attempt() + 1).restore(
        UNPINNED, state if wanted is None else wanted
    )
    assert restored is not None
    return restored.state


def test_every_dtype_and_rank(root: Path) -> None:
    state = {
        f"{dtype}-{len(shape)}": jnp.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        for dtype in DTYPES
        for shape in ((), (5,), (3, 2), (2, 1, 3))
    }
    assert bits(_round_trip(root, state)) == bits(state)


def test_numpy_of_every_dtype_stays_numpy(root: Path) -> None:
    state = {d: np.arange(6).astype(jnp.dtype(d)).reshape(2, 3) for d in DTYPES} | {
        "int64": np.array([2**62, -(2**62)]),
        "float64": np.array([np.nan, np.inf, -0.0, 1e-300]),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "zero": np.zeros((0, 2)),
        "scalar": np.float64(1) / 3,
    }
    assert bits(_round_trip(root, state)) == bits(state)


def test_special_values_keep_their_bits(root: Path) -> None:
    odd = np.array([0x7FC00001, 0xFFC00000, 0x7F800000, 0x80000000, 0x00000001], np.uint32).view(np.float32)
    state = {"odd": jnp.asarray(odd), "big": 2**62, "negative": -1, "tiny": 5e-324, "nan": float("nan"), "no": False}
    assert bits(_round_trip(root, state)) == bits(state)


def test_containers_of_every_kind(root: Path) -> None:
    weights = {"w": jnp.ones((4, 4)), "b": jnp.zeros(4)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3), optax.ema(0.9))
    state = {
        "pair": Pair(jnp.ones(2), (jnp.zeros(3), [jnp.ones(1), None])),
        "struct": Struct(weights, "static"),
        "optimizer": optimizer.init(weights),
        "layers": [dict(weights) for _ in range(3)],
        "empty": ({}, [], (), None),
        "numbered": {7: jnp.ones(1), 10: jnp.zeros(1)},
    }
    restored = _round_trip(root, state)
    assert str(jax.tree.structure(restored)) == str(jax.tree.structure(state))
    assert bits(restored) == bits(state)


def test_a_state_that_is_one_array(root: Path) -> None:
    assert bits(_round_trip(root, jnp.arange(9.0))) == bits(jnp.arange(9.0))


def test_an_abstract_state_is_enough(root: Path) -> None:
    state = {"w": jnp.arange(12.0).reshape(3, 4), "key": jax.random.key(5), "n": 3}
    abstract = jax.eval_shape(lambda: {"w": jnp.zeros((3, 4)), "key": jax.random.key(0)}) | {"n": 0}
    assert bits(_round_trip(root, state, abstract)) == bits(state)


def test_metrics_of_any_number_type_are_stored_and_what_is_not_finite_is_left_out(root: Path) -> None:
    store = store_at(root, 1)
    metrics = {"loss": jnp.float32(0.5), "n": np.int64(3), "f": 1, "nan": float("nan"), "inf": np.inf, "text": "no"}
    store.save(1, {"w": jnp.ones(2)}, CheckpointExtras(metrics=metrics)).result(30)
    store.close()
    assert RunFolder(root).survey().found[0].manifest.metrics == {"loss": 0.5, "n": 3.0, "f": 1.0}


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``state`` folder of a committed step 4."""
    root = tmp_path_factory.mktemp("plain") / "run"
    store = store_at(root, 1)
    store.save(4, state_of(4)).result(30)
    store.close()
    return root / "1" / "4" / "state"


def test_plain_orbax_readers_of_both_generations(committed: Path) -> None:
    expected = state_of(4)
    for loaded in (
        ocp.StandardCheckpointer().restore(committed),
        ocp.PyTreeCheckpointer().restore(committed),
        orbax_v1.load(committed),
    ):
        assert bits(loaded["params"]) == bits(expected["params"])
        assert bits(loaded["key"]) == bits(expected["key"])
        assert int(loaded["step"]) == 4
        assert np.array_equal(loaded["table"], expected["table"])


def test_plain_orbax_fills_a_target(committed: Path) -> None:
    wanted = {"params": state_of(0)["params"]}
    arguments = ocp.args.PyTreeRestore(
        item=wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
    )
    loaded = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(committed, args=arguments)
    assert bits(loaded["params"]) == bits(state_of(4)["params"])
