"""Small models for tests and benchmarks of rematerialisation: plain JAX, layers that keep much for their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from holdfast import remat
from holdfast.remat.choice import outcome
from holdfast.remat.graph import Graph

Params = dict[str, jax.Array]


def init_layers(layers: int, width: int, seed: int = 0) -> Params:
    """Parameters of transformer layers, stacked: leaves begin with a dimension of ``layers``."""
    sizes = {
        "scale": (width,),
        "qkv": (width, 3 * width),
        "out": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    keys = jax.random.split(jax.random.key(seed), len(sizes))
    return {
        name: jax.random.normal(key, (layers, *size)) * size[0] ** -0.5
        for (name, size), key in zip(sizes.items(), keys, strict=True)
    }


def tokens(batch: int, length: int, width: int, seed: int = 1) -> jax.Array:
    """Random activations of shape (batch, length, width)."""
    return jax.random.normal(jax.random.key(seed), (batch, length, width))


def normalised(x: jax.Array) -> jax.Array:
    """Zero mean and unit variance over the last axis."""
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(params: Params, x: jax.Array, heads: int = 2) -> jax.Array:
    """Causal self-attention. x: (batch, length, width)."""
    batch, length, width = x.shape
    split = jnp.split((normalised(x) * params["scale"]) @ params["qkv"], 3, axis=-1)
    query, key, value = (a.reshape(batch, length, heads, width // heads) for a in split)
    scores = jnp.einsum("bthd,bshd->bhts", query, key) * (width // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), value)
    return x + mixed.reshape(batch, length, width) @ params["out"]


def feed_forward(params: Params, x: jax.Array) -> jax.Array:
    """Two products with a GELU between. x: (batch, length, width)."""
    return x + jax.nn.gelu(normalised(x) @ params["up"]) @ params["down"]


def layer(params: Params, x: jax.Array) -> jax.Array:
    """One transformer layer. x: (batch, length, width)."""
    return feed_forward(params, attention(params, x))


def scanned(params: Params, x: jax.Array) -> jax.Array:
    """A loss over all layers in one scan."""
    return jnp.mean(jax.lax.scan(lambda c, p: (layer(p, c), None), x, params)[0] ** 2)


def unrolled(params: Params, x: jax.Array) -> jax.Array:
    """The same, layer after layer, each a marked block."""
    marked = remat.block(layer, "layer")
    for index in range(params["qkv"].shape[0]):
        x = marked(jax.tree.map(lambda leaf, i=index: leaf[i], params), x)
    return jnp.mean(x**2)


def by_component(params: Params, x: jax.Array) -> jax.Array:
    """The same, with attention and feed-forward part of each layer marked under names of their own."""
    first, second = remat.block(attention, "attention"), remat.block(feed_forward, "feed_forward")
    for index in range(params["qkv"].shape[0]):
        mine = jax.tree.map(lambda leaf, i=index: leaf[i], params)
        x = second(mine, first(mine, x))
    return jnp.mean(x**2)


def perceptron(params: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """A marked block per matrix, of different sizes: few values, so that all choices can be tried."""

    def dense(matrix: jax.Array, h: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.sin(h @ matrix) * 2.0)

    block = remat.block(dense, "dense")
    for matrix in params:
        x = block(matrix, x)
    return jnp.mean(x**2)


def convolutions(params: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    """Marked convolutions. x: (batch, height, width, channels); parameters: (3, 3, in, out) each."""

    def convolve(kernel: jax.Array, h: jax.Array) -> jax.Array:
        out = jax.lax.conv_general_dilated(h, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.silu(out)

    block = remat.block(convolve, "convolution")
    for kernel in params:
        x = block(kernel, x)
    return jnp.mean(x**2)


def largest_difference(left: Any, right: Any) -> float:
    """The largest difference of two trees of arrays, in units of machine epsilon of each array's largest element."""
    worst = 0.0
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        one, other = np.asarray(a, np.float64), np.asarray(b, np.float64)
        unit = float(np.finfo(a.dtype).eps) * max(float(np.abs(one).max()), 1e-30)
        worst = max(worst, float(np.abs(one - other).max()) / unit)
    return worst


def all_choices(graph: Graph) -> list[tuple[int, int, int]]:
    """(kept bytes, working bytes, FLOPs) of every subset of the values that a region could keep."""
    values = graph.choosable
    subsets = itertools.chain.from_iterable(itertools.combinations(values, n) for n in range(len(values) + 1))
    found = {(graph.everything_bytes, 0, 0)}
    for subset in subsets:
        choice = outcome(graph, frozenset(subset))
        found.add((choice.kept_bytes, choice.working_bytes, choice.flops))
    return sorted(found)


def fewest_flops(regions: Sequence[list[tuple[int, int, int]]], cap_bytes: float) -> int | None:
    """The best of every combination of choices, one per region, by trying all of them; None if none fits."""
    fitting = [
        sum(c[2] for c in combination)
        for combination in itertools.product(*map(undominated, regions))
        if sum(c[0] for c in combination) + max(c[1] for c in combination) <= cap_bytes
    ]
    return min(fitting, default=None)


def undominated(choices: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Without those that another one beats or equals in every respect."""
    best: list[tuple[int, int, int]] = []
    for choice in sorted(choices):
        if not any(all(o <= c for o, c in zip(other, choice, strict=True)) for other in best):
            best.append(choice)
    return best


Loss = Callable[[Any, jax.Array], jax.Array]
