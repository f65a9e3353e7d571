"""Scans over layers that keep what a policy says for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from holdfast.remat.checks import require_callable, require_int
from holdfast.remat.remat_policies import Policy, require_policy

Carry = TypeVar("Carry")


def scan_layers(
    layer: Callable[[Carry, Any], tuple[Carry, Any]],
    carry: Carry,
    layers: Any,
    policy: Policy,
    *,
    group: int = 1,
) -> tuple[Carry, Any]:
    """``jax.lax.scan(layer, carry, layers)`` that keeps of each layer its carry and what ``policy`` says.

    With ``group`` above 1, only the carry of every ``group``-th layer is kept, and the layers of a group run again for its
    backward pass. That is a second forward pass of each layer, besides the one that the policy itself causes. Carries take
    the least memory at about the square root of the number of layers (T. Chen et al., Training Deep Nets with Sublinear
    Memory Cost, arXiv:1604.06174).

    Args:
        layer: ``(carry, layer's leaves) -> (carry, output)``.
        carry: the input of the first layer.
        layers: a pytree whose leaves have shape ``(number of layers, ...)``.
        policy: what to keep of each layer.
        group: number of layers per kept carry; a divisor of the number of layers.

    Returns:
        The last carry, and the outputs stacked along a first axis.

    Raises:
        ValueError: ``group`` does not divide the number of layers, or the leaves' first dimensions differ.
    """
    require_callable("layer", layer)
    require_policy("policy", policy)
    require_int("group", group, minimum=1)
    leaves = jax.tree.leaves(layers)
    lengths = sorted({leaf.shape[0] if leaf.ndim else 0 for leaf in leaves})
    if len(lengths) != 1 or lengths[0] < 1:
        raise ValueError(f"layers: found leading dimensions {lengths}, allowed: one, the number of layers")
    if lengths[0] % group:
        raise ValueError(f"group: found {group}, allowed: a divisor of the number of layers, {lengths[0]}")
    one = jax.checkpoint(layer, policy=policy.jax_policy(), prevent_cse=False)
    if group == 1:
        return jax.lax.scan(one, carry, layers)
    outer = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] // group, group, *leaf.shape[1:]), layers)
    inner = jax.checkpoint(lambda c, some: jax.lax.scan(one, c, some), prevent_cse=False)
    last, outputs = jax.lax.scan(inner, carry, outer)
    return last, jax.tree.map(lambda leaf: leaf.reshape(lengths[0], *leaf.shape[2:]), outputs)
