"""What cannot be stored is refused with its path by the call that has it; everything else comes back exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import holdfast
from holdfast import errors
from holdfast.state.storable import DTYPES
from holdfast.store import UNPINNED, StoreSettings
from holdfast.store.format import orbax_io
from holdfast.store.store_settings import WriterName
from tests.support.storage.states import bits, store_at

EXTENDED = sorted(name for name in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, name), type) and name[-1].isalnum())
EVERY_DTYPE = {name: np.dtype(getattr(ml_dtypes, name)) for name in EXTENDED if name not in {"finfo", "iinfo"}} | {
    np.dtype(code).name: np.dtype(code) for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"
}
REFUSED: dict[str, Any] = {
    **{
        f"numpy {name}": np.zeros(3, np.int8).astype(dtype) for name, dtype in EVERY_DTYPE.items() if name not in DTYPES
    },
    "number of a long dtype": np.longdouble(1),
    "large int": 2**64,
    "small int": -(2**63) - 1,
    "masked": np.ma.masked_array([1.0, 2.0], [False, True]),
    "matrix": np.ones((1, 2)).view(np.matrix),
    "complex": 1j,
}


def numpy_leaves(name: str) -> dict[str, Any]:
    values = np.array([0, 1, 1, 0], np.int8).astype(EVERY_DTYPE[name])
    return {"array": values, "number": values[1], "without axes": np.array(values[1])}


@pytest.mark.parametrize("writer", ["direct", "orbax"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused_at_the_call(root: Path, name: str, writer: WriterName) -> None:
    store = store_at(root, 1, settings=StoreSettings(writer=writer))
    state = {"good": 1, "bad": [REFUSED[name]]}
    for call in (lambda: store.prepare(state), lambda: store.save(1, state), lambda: store.restore(UNPINNED, state)):
        with pytest.raises(errors.UnsupportedLeaf) as caught:
            call()
        assert caught.value.leaf == "['bad'][0]"
    store.close()
    assert not list(root.glob("1/1"))


@pytest.mark.parametrize("name", ["uint4", "uint2", "float8_e4m3", "int1"])
def test_jax_arrays_of_such_dtypes_are_refused_at_the_commit(tmp_path: Path, name: str) -> None:
    with holdfast.session(tmp_path) as run:
        state, _ = run.restore({"w": jnp.ones(2)})
        for step in run.steps(until=1):
            with pytest.raises(errors.UnsupportedLeaf, match=rf"\['w'\]: found dtype {name}"):
                run.commit(step, {"w": jnp.ones(2, getattr(jnp, name, name))})
            run.commit(step, state)


@pytest.mark.parametrize("name", sorted(EVERY_DTYPE.keys() - DTYPES))
def test_the_installed_orbax_lacks_each_dtype_that_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="dtype"):
        orbax_io.write_part(tmp_path, {"w": REFUSED[f"numpy {name}"]})


@pytest.mark.parametrize("writer", ["direct", "orbax"])
def test_every_dtype_that_is_allowed_comes_back(root: Path, writer: WriterName) -> None:
    states = {name: numpy_leaves(name) for name in sorted(DTYPES)} | {
        "ints": {"greatest": 2**64 - 1, "least": -(2**63)},
        "another byte order": {"w": np.arange(3, dtype=">f4")},
        "no elements": {"w": np.zeros((0, 2), EVERY_DTYPE["uint4"]), "step": 1},
    }
    store = store_at(root, 1, settings=StoreSettings(writer=writer))
    for step, (name, state) in enumerate(states.items()):
        store.save(step, state).result(60)
        restored = store.restore(UNPINNED, state)
        assert restored is not None, name
        assert bits(restored.state) == bits(state), name
    store.close()


def test_jax_arrays_of_every_dtype_that_is_allowed_come_back(root: Path) -> None:
    made = {name: np.array([0, 1], np.int8).astype(EVERY_DTYPE[name]) for name in DTYPES}
    state = {name: jax.device_put(value) for name, value in made.items()}
    store = store_at(root, 1)
    store.save(1, state).result(60)
    restored = store.restore(UNPINNED, state)
    store.close()
    assert restored is not None
    assert bits(restored.state) == bits(state)
