"""Names of leaves: whatever a program calls them, Orbax's own readers find them in what either writer wrote."""

from __future__ import annotations

import string
import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UnsupportedLeaf
from holdfast.state.structure import structure_of
from holdfast.store import UNPINNED, StoreSettings
from holdfast.store.store_settings import WRITERS, WriterName
from tests.support.storage import writer_tasks
from tests.support.storage.states import bits, store_at

PRINTABLE = [f"a{character}b" for character in string.printable if character.isprintable()]
SLASHES = ["/", "x/", "/x", "x//y", "//", "./x", "../x", "."]
KNOWN = [
    "params/mlp/~/linear_0/w",
    "schicht_ä",
    "日本語",
    "🙂",
    "~",
    "x?",
    "x>y",
    "ÿÿÿ",
    "0",
    "layer.bias",
    " ",
    "a" * 200,
]

names = st.text(st.characters(categories=["L", "M", "N", "P", "S", "Zs"]), min_size=1, max_size=24)


def assert_found_by_everybody(root: Path, state: dict[str, Any], writer: WriterName) -> None:
    store = store_at(root, 1, settings=StoreSettings(writer=writer))
    store.save(1, state).result(60)
    restored = store.restore(UNPINNED, state)
    store.close()
    assert restored is not None
    assert bits(restored.state) == bits(state)
    folder = root / "1/1/state"
    assert writer_tasks.read_plainly(folder, state) == {"PyTreeCheckpointer": [], "StandardCheckpointer": [], "v1": []}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_printable_character_and_the_names_of_libraries(tmp_path: Path, writer: WriterName) -> None:
    state = {name: jnp.full(3, float(number)) for number, name in enumerate([*PRINTABLE, *KNOWN])}
    assert_found_by_everybody(tmp_path, state, writer)


@pytest.mark.parametrize("name", SLASHES)
def test_names_that_look_like_folders(tmp_path: Path, name: str) -> None:
    assert_found_by_everybody(tmp_path, {name: jnp.arange(3.0), "other": jnp.ones(2)}, "direct")


def test_names_that_are_one_to_tensorstore_are_refused() -> None:
    with pytest.raises(UnsupportedLeaf, match="has too"):
        structure_of({"x": jnp.ones(1), "x/": jnp.zeros(1)})


@settings(max_examples=20)
@given(
    drawn=st.lists(names, min_size=1, max_size=4, unique=True), nested=st.booleans(), writer=st.sampled_from(WRITERS)
)
def test_names_of_any_kind(drawn: list[str], nested: bool, writer: WriterName) -> None:
    leaves = {name: jnp.arange(2.0) + number for number, name in enumerate(drawn)}
    with tempfile.TemporaryDirectory() as folder:
        assert_found_by_everybody(Path(folder), {drawn[0]: leaves} if nested else leaves, writer)
