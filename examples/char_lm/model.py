"""A small transformer over characters, in plain JAX: parameters are a dictionary, the model is a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

Params = dict[str, jax.Array]
State = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of the model. ``width`` is a multiple of ``heads``; ``dropout`` is a probability."""

    vocabulary: int = 256
    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 64
    dropout: float = 0.1


def init_params(shape: Shape, key: jax.Array) -> Params:
    """Return random parameters. All layers are stacked: the first dimension of their leaves is ``layers``."""
    width, layers = shape.width, shape.layers
    sizes = {
        "embed": (shape.vocabulary, width),
        "position": (shape.context, width),
        "attention_in": (layers, width, 3 * width),
        "attention_out": (layers, width, width),
        "mlp_in": (layers, width, 4 * width),
        "mlp_out": (layers, 4 * width, width),
    }
    keys = jax.random.split(key, len(sizes))
    return {
        name: jax.random.normal(k, size) * size[-2] ** -0.5 for (name, size), k in zip(sizes.items(), keys, strict=True)
    }


def logits(params: Params, tokens: jax.Array, key: jax.Array, shape: Shape) -> jax.Array:
    """Return scores of the next character.

    ``tokens``: int32 of shape (batch, context). Result: shape (batch, context, vocabulary).
    """
    hidden = params["embed"][tokens] + params["position"]
    layer_names = ("attention_in", "attention_out", "mlp_in", "mlp_out")
    stacked = {name: params[name] for name in layer_names}

    def layer(hidden: jax.Array, inputs: tuple[Params, jax.Array]) -> tuple[jax.Array, None]:
        weights, key = inputs
        attention_key, mlp_key = jax.random.split(key)
        attended = _attention(_normalize(hidden), weights, shape.heads)
        hidden = hidden + _dropout(attended, attention_key, shape.dropout)
        mlp = jax.nn.gelu(_normalize(hidden) @ weights["mlp_in"]) @ weights["mlp_out"]
        return hidden + _dropout(mlp, mlp_key, shape.dropout), None

    hidden, _ = jax.lax.scan(layer, hidden, (stacked, jax.random.split(key, shape.layers)))
    return _normalize(hidden) @ params["embed"].T


def init_state(shape: Shape, optimizer: optax.GradientTransformation, seed: int) -> State:
    """Return everything that training changes: parameters, optimizer state, and the key for dropout."""
    params_key, key = jax.random.split(jax.random.key(seed))
    params = init_params(shape, params_key)
    return {"params": params, "optimizer": optimizer.init(params), "key": key}


def train_step(
    state: State,
    batch: jax.Array,
    *,
    shape: Shape,
    optimizer: optax.GradientTransformation,
    whole: jax.sharding.Sharding,
) -> tuple[State, jax.Array]:
    """Take one step on ``batch``, int32 of shape (batch, context + 1). Returns the next state and the mean loss in nats.

    This is fully sharded data parallelism: the parameters are gathered for the step (``whole``), and every device computes
    its part of the batch. Without this constraint the compiler would follow the sharded parameters and gather activations
    in every layer.
    """
    key, dropout_key = jax.random.split(state["key"])

    def loss_of(params: Params) -> jax.Array:
        params = jax.lax.with_sharding_constraint(params, whole)  # type: ignore[no-untyped-call]
        scores = logits(params, batch[:, :-1], dropout_key, shape)
        loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(scores, batch[:, 1:]).mean()
        return loss

    loss, gradients = jax.value_and_grad(loss_of)(state["params"])
    updates, optimizer_state = optimizer.update(gradients, state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "optimizer": optimizer_state, "key": key}, loss


def _attention(hidden: jax.Array, weights: Params, heads: int) -> jax.Array:
    batch, length, width = hidden.shape
    parts = (hidden @ weights["attention_in"]).reshape(batch, length, 3, heads, width // heads)
    query, key, value = parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return mixed.reshape(batch, length, width) @ weights["attention_out"]


def _normalize(hidden: jax.Array) -> jax.Array:
    return hidden * jax.lax.rsqrt(jnp.mean(hidden * hidden, axis=-1, keepdims=True) + 1e-6)


def _dropout(hidden: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    keep = jax.random.bernoulli(key, 1.0 - rate, hidden.shape)
    return jnp.where(keep, hidden / (1.0 - rate), 0.0)
