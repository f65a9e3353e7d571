"""The leaves of any checkpoint by stored name, and how to read them: Holdfast's own, or a sealed one of plain Orbax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast import errors
from holdfast.catalog.listing import TRANSIENT_SECONDS
from holdfast.catalog.sealing import IO_THREADS, SEALED_ATTEMPT
from holdfast.state.leaves import STRUCTURE_FILE, Leaf, LeafKind, from_bytes, name_of
from holdfast.store.format import digests, orbax_records
from holdfast_contract.keys import STATE_FOLDER
from holdfast_contract.runfolder import Found

_KEY_DTYPES: Final = {"threefry2x32": "key<fry>", "rbg": "key<rbg>", "unsafe_rbg": "key<urbg>"}
_PYTHON_TYPES: Final = {"bool": "bool", "int64": "int", "float64": "float"}


@dataclass(frozen=True)
class Contents:
    """``leaves`` by name. ``places``: for each leaf, the folder that Orbax reads it from, and its name there."""

    found: Found
    leaves: Mapping[str, Leaf]
    places: Mapping[str, tuple[Path, str]]

    def read(self, requested: Mapping[str, Any], *, compared: bool = False) -> dict[str, Any]:
        """The values of some leaves, as ``orbax_io.load_named`` returns them.

        ``requested`` maps names to leaves with the shape, dtype and sharding to fill. With ``compared`` the whole checkpoint
        is compared with its manifest in the same pass, so every returned byte was compared; for Holdfast's own alone.

        Raises:
            DamagedCheckpoint: a file is not as the manifest says. StorageError: storage does not answer.
        """
        values = self._read_directly(requested, compared=compared) if is_own(self.found) else None
        return self._read_by_orbax(requested) if values is None else values

    def _read_directly(self, requested: Mapping[str, Any], *, compared: bool) -> dict[str, Any] | None:
        """The values; None if Orbax must read them. The files are compared in both cases."""
        from holdfast.store.read import verified_read
        from holdfast.store.read.read_plan import NotUnderstoodError

        folder, files = self.found.folder, self.found.manifest.files
        plan = verified_read.plan_state(folder, files, dict(requested))
        limits: Any = {"threads": IO_THREADS, "transient_seconds": TRANSIENT_SECONDS}
        try:
            with _errors_of_holdfast(folder):
                if compared:
                    verified_read.verify_and_read(folder, files, plan, **limits)
                elif plan is not None:
                    verified_read.read_others(folder, files, plan, **limits)
                return None if plan is None else dict(plan.state())
        except NotUnderstoodError:
            return None

    def _read_by_orbax(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        from holdfast.store.format import orbax_io

        values: dict[str, Any] = {}
        for folder in dict.fromkeys(self.places[name][0] for name in requested):
            here = {self.places[name][1]: name for name in requested if self.places[name][0] == folder}
            found = orbax_io.load_named(folder, {inner: requested[name] for inner, name in here.items()})
            values |= {here[inner]: value for inner, value in found.items()}
        return values


def is_own(found: Found) -> bool:
    """Whether Holdfast wrote it. Otherwise plain Orbax wrote it, and it was sealed."""
    return found.ref.attempt != SEALED_ATTEMPT


def contents_of(found: Found) -> Contents:
    """The leaves of a checkpoint, from its records.

    The record of Holdfast's own checkpoint is verified here; a sealed step must have been verified before. A sealed step
    contributes every item that is a tree of arrays; with several items, names begin with the item's name.

    Raises:
        DamagedCheckpoint, StorageError: as ``Contents.read``. ValueError: a sealed step holds no tree of arrays.
    """
    if is_own(found):
        record = [entry for entry in found.manifest.files if entry.path == STRUCTURE_FILE]
        with _errors_of_holdfast(found.folder):
            digests.verify_digests(found.folder, record, threads=1, transient_seconds=TRANSIENT_SECONDS)
            read = from_bytes((found.folder / STRUCTURE_FILE).read_bytes())
        leaves = {name_of(leaf.path): leaf for leaf in read.leaves}
        return Contents(found, leaves, {name: (found.folder / STATE_FOLDER, name) for name in leaves})
    items = sorted(path for path in found.folder.iterdir() if (path / orbax_records.TREE_FILE).is_file())
    if not items:
        raise ValueError(
            f"{found.folder}: found no item with {orbax_records.TREE_FILE}, allowed: one or more trees of arrays"
        )
    leaves, places = {}, {}
    for item in items:
        for inner, leaf in _foreign_leaves(item):
            name = inner if len(items) == 1 else f"{item.name}.{inner}"
            leaves[name], places[name] = leaf, (item, inner)
    return Contents(found, leaves, places)


@contextmanager
def _errors_of_holdfast(folder: Path) -> Iterator[None]:
    """Turn errors of files into those of ``holdfast.errors``."""
    try:
        yield
    except digests.DamagedFileError as error:
        raise errors.DamagedCheckpoint(folder, reason=str(error)) from None
    except OSError as error:
        raise errors.StorageError(str(error), path=folder, errno=error.errno or 0) from error


def _foreign_leaves(item: Path) -> Iterator[tuple[str, Leaf]]:
    from holdfast.store.format import orbax_io

    kinds = orbax_records.value_types(item)
    implementations = _key_implementations(item)
    for name, shape, dtype in orbax_io.stored_leaves(item):
        if name in implementations:
            yield name, Leaf(f".{name}", LeafKind.KEY, shape[:-1], _KEY_DTYPES.get(implementations[name], dtype))
        elif kinds.get(name) == "scalar" and dtype in _PYTHON_TYPES:
            yield name, Leaf(f".{name}", LeafKind.SCALAR, (), _PYTHON_TYPES[dtype])
        elif kinds.get(name) == "jax.Array" and 0 not in shape:
            yield name, Leaf(f".{name}", LeafKind.ARRAY, shape, dtype)
        else:
            yield name, Leaf(f".{name}", LeafKind.NUMPY, shape, dtype)


def _key_implementations(item: Path) -> dict[str, str]:
    """By name, the implementation of PRNG keys, whose data are stored."""
    files = sorted((item / orbax_records.ARRAY_METADATA_FOLDER).glob("process_*"))
    records = [record for file in files for record in orbax_records.array_records(file)]
    return {record.name: record.key_impl for record in records if record.key_impl}
