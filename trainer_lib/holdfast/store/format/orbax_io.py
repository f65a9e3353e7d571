"""The only module that imports Orbax: it writes and reads the arrays of a plain Orbax checkpoint folder.

It calls Orbax's handler directly instead of a checkpointer. Checkpointers synchronise ranks with XLA collectives in
``save``, which deadlocks on a background thread while the main thread runs collectives of its own, and they wait minutes
for a rank that has failed. The handler does neither; the ranks agree through Holdfast's own votes. The files are the same:
each rank's part under ``ocdbt.process_<i>``, merged by rank 0.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath  # type: ignore[import-untyped]

from holdfast.state.placing import empty_like, is_empty, is_free, sharding_of
from holdfast.state.structure import PyTree, is_key

_OS_ERROR: Final = re.compile(r"os_error_code='(\d+)'|OS error (\d+)")
_QUOTED_PATH: Final = re.compile(r'"(/[^"]+)"')


def write_part(folder: Path, state: PyTree) -> None:
    """Write this rank's part of ``state``; returns when Orbax reports it durable. No rank waits for another.

    Blocks, so call it on a background thread. Raises OSError with errno and path if the text of TensorStore's error has
    them, otherwise what Orbax raised.
    """
    leaves, treedef = jax.tree_util.tree_flatten(state)
    item = jax.tree_util.tree_unflatten(treedef, [_as_orbax_takes_it(leaf) for leaf in leaves])

    async def write() -> None:
        futures = await _handler().async_save(epath.Path(folder), args=ocp.args.PyTreeSave(item))
        for future in futures or ():
            future.result()

    _translated(lambda: asyncio.run(write()), folder)


def _as_orbax_takes_it(leaf: Any) -> Any:
    """Orbax refuses arrays without elements, and NumPy's bools and numbers of dtypes that NumPy lacks, such as bfloat16."""
    if is_empty(leaf):
        return None
    refused = isinstance(leaf, np.generic) and not (leaf.dtype.isbuiltin == 1 and leaf.dtype.kind in "iufc")
    return np.asarray(leaf) if refused else leaf


def merge_parts(folder: Path) -> None:
    """Join all parts into one checkpoint by reference. Rank 0 calls it once every part is written."""
    _translated(lambda: _handler().finalize(epath.Path(folder)), folder)


def load(folder: Path, abstract: PyTree, *, partly: bool = False, without: Container[str] = ()) -> PyTree:
    """The state stored in ``folder``. No rank waits for another.

    Leaves without a sharding, or on the default device only, are returned uncommitted, like freshly made arrays.

    Args:
        folder: of the arrays.
        abstract: a pytree of the stored structure, with the shapes, dtypes and shardings to fill.
        partly: leave out leaves that only the checkpoint has.
        without: paths of leaves that are not read; they are returned as they are in ``abstract``.

    Raises:
        OSError: storage does not answer. Any other error is Orbax's own.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(abstract)
    leaves = [leaf for _, leaf in paths]
    unread = [jax.tree_util.keystr(path) in without for path, _ in paths]
    stored = [None if skip or is_empty(leaf) else leaf for leaf, skip in zip(leaves, unread, strict=True)]
    item = jax.tree_util.tree_unflatten(treedef, stored)
    arguments = jax.tree_util.tree_map(_restore_arguments, item)
    request = ocp.args.PyTreeRestore(item=item, restore_args=arguments, partial_restore=partly or any(unread))
    restored = _translated(lambda: _handler().restore(epath.Path(folder), args=request), folder)
    values = iter(jax.tree_util.tree_leaves(restored))

    def value_of(leaf: Any, *, skip: bool) -> Any:
        if skip:
            return leaf
        return empty_like(leaf) if is_empty(leaf) else _as_requested(next(values), leaf)

    filled = [value_of(leaf, skip=skip) for leaf, skip in zip(leaves, unread, strict=True)]
    return jax.tree_util.tree_unflatten(treedef, filled)


def load_named(folder: Path, requested: Mapping[str, Any]) -> dict[str, Any]:
    """Some of the leaves, by stored name; the others are not read. Otherwise as ``load``.

    Every name must be stored in ``folder``; the structure record lists the stored names.
    """
    stored = {name: leaf for name, leaf in requested.items() if not is_empty(leaf)}
    values = {name: empty_like(leaf) for name, leaf in requested.items() if is_empty(leaf)}
    if stored:
        metadata = _translated(lambda: _handler().metadata(epath.Path(folder)), folder)
        # The tree as Orbax recorded it: lists and dictionaries must match exactly.
        item = jax.tree_util.tree_map(lambda leaf: stored.get(leaf.name, ocp.PLACEHOLDER), metadata.tree)
        restored = jax.tree_util.tree_leaves_with_path(_restore(folder, item))
        found = {jax.tree_util.keystr(path, simple=True, separator="."): value for path, value in restored}
        values |= {name: _as_requested(found[name], leaf) for name, leaf in stored.items()}
    return values


def stored_leaves(folder: Path) -> list[tuple[str, tuple[int, ...], str]]:
    """(stored name, shape, dtype) of every leaf; PRNG keys have the shape and dtype of their data."""
    metadata = _translated(lambda: _handler().metadata(epath.Path(folder)), folder)
    leaves = (leaf for leaf in jax.tree_util.tree_leaves(metadata.tree) if hasattr(leaf, "dtype"))
    return [(leaf.name, tuple(getattr(leaf, "shape", ())), str(np.dtype(leaf.dtype))) for leaf in leaves]


def _restore(folder: Path, item: PyTree) -> PyTree:
    arguments = jax.tree_util.tree_map(_restore_arguments, item)
    request = ocp.args.PyTreeRestore(item=item, restore_args=arguments)
    return _translated(lambda: _handler().restore(epath.Path(folder), args=request), folder)


def _handler() -> ocp.PyTreeCheckpointHandler:
    # Uncompressed: zstd costs three times the CPU for a few percent of float32 state.
    return ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=False, use_compression=False)


def _restore_arguments(leaf: Any) -> ocp.RestoreArgs:
    if leaf is ocp.PLACEHOLDER:
        return ocp.RestoreArgs()
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        key = is_key(leaf)
        if is_free(leaf) and not key:
            return ocp.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
        return ocp.ArrayRestoreArgs(
            restore_type=jax.Array,
            sharding=sharding_of(leaf),
            global_shape=None if key else leaf.shape,
            dtype=None if key else leaf.dtype,
        )
    if isinstance(leaf, np.ndarray | np.generic):
        return ocp.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
    return ocp.RestoreArgs(restore_type=type(leaf))


def _as_requested(value: Any, leaf: Any) -> Any:
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) and is_free(leaf):
        if not is_key(leaf):
            return jnp.asarray(value)
        data = np.asarray(jax.random.key_data(value))  # through the host: a copy on devices would stay committed
        return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(value))
    if isinstance(leaf, np.generic):
        return leaf.dtype.type(np.asarray(value)[()])
    if isinstance(leaf, np.ndarray):
        return np.asarray(value, leaf.dtype)  # another byte order
    if isinstance(leaf, bool | int | float):
        return type(leaf)(value)
    return value


def _translated(action: Callable[[], Any], folder: Path) -> Any:
    """Run ``action``; TensorStore reports system errors as text in a ValueError, which becomes an OSError with errno and path."""
    try:
        return action()
    except OSError:
        raise
    except Exception as error:
        text = str(error)
        number = _OS_ERROR.search(text)
        if number is None:
            raise
        paths = _QUOTED_PATH.findall(text)
        code = int(number.group(1) or number.group(2))
        raise OSError(code, text[:500], paths[-1] if paths else str(folder)) from error
