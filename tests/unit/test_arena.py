"""Memory for snapshots: what is copied arrives, in as few pieces as the threads need."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.write.arena import PAGE_BYTES, Arena, equal_shares

MIB = 1 << 20


@given(st.lists(st.integers(0, 9 * PAGE_BYTES), min_size=1, max_size=9), st.integers(1, 5))
def test_shares_are_equal_and_cut_only_where_a_share_ends(sizes, count):
    pairs = [(np.zeros(size, np.uint8), np.random.default_rng(size).integers(0, 256, size, np.uint8)) for size in sizes]
    shares = equal_shares(pairs, count)
    assert len(shares) <= count
    assert sum(len(share) for share in shares) <= len(sizes) + count - 1
    held = [sum(to.nbytes for to, _ in share) for share in shares]
    assert max(held) <= sum(sizes) / count + PAGE_BYTES
    for to, taken in (pair for share in shares for pair in share):
        to[:] = taken
    assert all(np.array_equal(to, taken) for to, taken in pairs)


def test_arrays_of_every_size_and_order_are_copied():
    rng = np.random.default_rng(0)
    sources = [
        rng.standard_normal((3 * MIB,)),  # large: shared among threads
        rng.standard_normal((1024, 1025)).T,  # large, but not in C order
        rng.standard_normal((2 * MIB + 3,)).astype(np.float32),
        rng.integers(0, 9, (7, 5)),
        np.zeros((0, 4)),
    ]
    targets = [np.empty(source.shape, source.dtype) for source in sources]
    sources.append(rng.standard_normal((1025, 1024)))
    targets.append(np.empty((1024, 1025)).T)  # the target, too, may lie in another order
    Arena().copy(list(zip(targets, sources, strict=True)))
    assert all(np.array_equal(target, source) for target, source in zip(targets, sources, strict=True))
