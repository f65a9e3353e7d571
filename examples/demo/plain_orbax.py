"""Loads a checkpoint with Orbax alone, and prints one digest over the bytes of all arrays."""

from __future__ import annotations

import hashlib
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp


def main() -> None:
    checkpointer = ocp.PyTreeCheckpointer()
    tree = checkpointer.metadata(sys.argv[1]).item_metadata.tree
    arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    restored = checkpointer.restore(sys.argv[1], args=ocp.args.PyTreeRestore(restore_args=arguments))
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(restored):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
