"""Rematerialise a small transformer, by component and under a byte budget, and print what each choice saves and costs.

Run it with ``python examples/remat.py [report.json]``; ``python tools/remat_chart.py report.json chart.svg`` draws the report.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from holdfast import remat

LAYERS, WIDTH, BATCH, LENGTH = 6, 32, 4, 32
Params = dict[str, jax.Array]


def normalised(x: jax.Array) -> jax.Array:
    """Scale ``x`` to zero mean and unit variance over the last axis."""
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def attention(params: Params, x: jax.Array) -> jax.Array:
    """Apply self-attention with one head. x: (batch, length, width)."""
    query, key, value = jnp.split(normalised(x) @ params["qkv"], 3, axis=-1)
    weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", query, key) * WIDTH**-0.5)
    return x + jnp.einsum("bts,bsd->btd", weights, value) @ params["out"]


def feed_forward(params: Params, x: jax.Array) -> jax.Array:
    """Apply two dense layers to each position. x: (batch, length, width)."""
    return x + jax.nn.gelu(normalised(x) @ params["up"]) @ params["down"]


def loss(params: Params, x: jax.Array) -> jax.Array:
    """Compute the loss with all layers in one scan, which needs no marks."""

    def layer(hidden: jax.Array, mine: Params) -> tuple[jax.Array, None]:
        return feed_forward(mine, attention(mine, hidden)), None

    return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)


def loss_by_component(params: Params, x: jax.Array) -> jax.Array:
    """Compute the same loss with two marked blocks in each layer."""
    first, second = remat.block(attention, "attention"), remat.block(feed_forward, "feed_forward")
    return jnp.mean(jax.lax.scan(lambda h, mine: (second(mine, first(mine, h)), None), x, params)[0] ** 2)


def main() -> None:
    """Compute the same gradient in three ways."""
    sizes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    keys = jax.random.split(jax.random.key(0), len(sizes) + 1)
    params = {
        name: jax.random.normal(key, (LAYERS, *size)) * WIDTH**-0.5
        for key, (name, size) in zip(keys, sizes.items(), strict=False)
    }
    x = jax.random.normal(keys[-1], (BATCH, LENGTH, WIDTH))
    expected = jax.jit(jax.grad(loss))(params, x)

    by_component = remat.assign(
        loss_by_component, {"attention": remat.nothing(), "feed_forward": remat.dots(batch=False)}
    )
    planned = remat.plan(loss, params, x, budget=remat.fraction(0.4))
    print(planned.report.table())
    for kept in planned.regions:
        print(f"{kept.region}: keeps {kept.kept_bytes:,} bytes, recomputes {kept.recomputed_flops:,} FLOPs")
    functions: dict[str, Callable[..., Any]] = {"by component": by_component, "planned": planned}
    for name, function in functions.items():
        found = jax.jit(jax.grad(function))(params, x)
        pairs = zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
        relative = [float(jnp.abs(a - b).max() / jnp.abs(a).max()) for a, b in pairs]
        if max(relative) > 1e-6:
            sys.exit(f"{name}: gradients differ by {max(relative):.1e} of the largest element")
        print(f"{name}: largest difference of a gradient: {max(relative):.1e} of its largest element")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(planned.report.to_jsonable()), encoding="utf-8")
        print(f"report: {sys.argv[1]}")


if __name__ == "__main__":
    main()
