"""Reading the index of a checkpoint: Holdfast's decoder beside ``tensorstore.ocdbt.dump``.

Each figure is the first reading in a fresh process that has imported JAX, as at a restart. Then both decoders get the
same damaged manifests and nodes, first as they are and then with a correct checksum, which lets them reach the parser.

Run it with ``python benchmarks/ocdbt_index.py``.
"""

from __future__ import annotations

import argparse
import collections
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from holdfast.distributed.coordination import LocalCoordination
from holdfast.store.format.ocdbt import decode, index
from holdfast.store.format.ocdbt.crc32c import crc32c
from holdfast.store.format.regular import read_range
from holdfast_contract.manifest import Owner
from holdfast_contract.runfolder import RunFolder

LEAVES = (16, 4096)
DECODERS = ("holdfast", "tensorstore")


def save(root: Path, leaves: int) -> Path:
    """A checkpoint of ``leaves`` small arrays, sixteen to a layer; the folder of its arrays."""
    import jax.numpy as jnp

    from holdfast.store import Store

    names = [(f"layer_{number // 16:04d}", f"w{number % 16}") for number in range(leaves)]
    state = {layer: {name: jnp.ones((8, 8)) for at, name in names if at == layer} for layer, _ in names}
    root.mkdir(parents=True, exist_ok=True)
    store = Store(
        RunFolder(root / "run"), attempt=1, owner=Owner("uid", "ns", "job", 1), coordination=LocalCoordination()
    )
    store.claim()
    store.save(1, state).result()
    store.close()
    return root / "run" / "1" / "1" / "state"


def read_once(folder: Path, decoder: str) -> float:
    """Milliseconds of the first reading of an index in this process."""
    import jax.numpy  # noqa: F401  a training program has imported it

    if "tensorstore" in sys.modules:
        raise RuntimeError("tensorstore was imported before the clock started")
    start = time.perf_counter()
    if decoder == "tensorstore":
        module = decoder_of(decoder)  # imports tensorstore: part of what a restart would wait for
        decode.decode_manifest, decode.decode_node = module.decode_manifest, module.decode_node
    index.read_index(lambda path, offset, length: read_range(folder / path, offset, length))
    return 1000 * (time.perf_counter() - start)


def decoder_of(name: str) -> ModuleType:
    """The module that decodes."""
    if name == "holdfast":
        return decode
    from holdfast.store.format.ocdbt import tensorstore_decode

    return tensorstore_decode


def damaged(whole: bytes, rng: random.Random, *, raw: bool) -> bytes:
    """One to five bytes replaced, one in five cut short; unless ``raw`` with the right length and checksum."""
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 2, 5))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)) :]
    if not raw and len(data) > 18:
        data[4:12] = struct.pack("<Q", len(data))
        data[-4:] = struct.pack("<I", crc32c(bytes(data[:-4])))
    return bytes(data)


def answers_to_damage(folder: Path, count: int, *, raw: bool) -> dict[str, collections.Counter[str]]:
    """By decoder, how many of ``count`` damaged inputs were read, refused, or led to another error."""
    rng = random.Random(1)
    manifest = (folder / index.MANIFEST).read_bytes()
    root = decode.decode_manifest(manifest)
    if root is None:
        raise RuntimeError(f"{folder}: found an empty index")
    node = read_range(folder / root.extent.path, root.extent.offset, root.extent.length)
    found: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in DECODERS}
    for _ in range(count):
        is_node = rng.random() < 0.5
        data = damaged(node if is_node else manifest, rng, raw=raw)
        for name in DECODERS:
            module = decoder_of(name)
            try:
                _ = module.decode_node(data, root) if is_node else module.decode_manifest(data)
                found[name]["read"] += 1
            except decode.NotUnderstoodError:
                found[name]["refused"] += 1
            except Exception as error:  # what is counted here
                found[name][type(error).__name__] += 1
    return found


def main() -> None:
    """Print a line for each size and decoder, then what each made of damage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--damaged", type=int, default=3000)
    parser.add_argument("--once", nargs=2, metavar=("FOLDER", "DECODER"), help="one reading; the benchmark's own use")
    arguments = parser.parse_args()
    if arguments.once:
        print(read_once(Path(arguments.once[0]), arguments.once[1]))
        return
    with tempfile.TemporaryDirectory() as root:
        for leaves in LEAVES:
            folder = save(Path(root) / str(leaves), leaves)
            for decoder in DECODERS:
                command = [sys.executable, __file__, "--once", str(folder), decoder]
                times = [
                    float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                    for _ in range(arguments.rounds)
                ]
                spread = f"{min(times):.1f} … {max(times):.1f}"
                print(f"{leaves:5} leaves, {decoder:11}: {statistics.median(times):6.1f} ms ({spread})")
            if leaves == LEAVES[0]:
                for raw in (True, False):
                    print("damaged", "raw" if raw else "with a correct checksum", end=": ")
                    print({k: dict(v) for k, v in answers_to_damage(folder, arguments.damaged, raw=raw).items()})


if __name__ == "__main__":
    main()
