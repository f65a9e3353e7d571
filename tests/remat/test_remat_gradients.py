"""Gradients with rematerialisation are those without, for plain functions, NNX and Linen."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from holdfast import remat
from tests.support.remat.models import (
    by_component,
    init_layers,
    largest_difference,
    layer,
    scanned,
    tokens,
    unrolled,
)

EPSILONS = 8
"""Limit on the difference, in units of machine epsilon of the largest element of an array: the compiler fuses the two
programs differently, and about 2 is the most that was seen."""

POLICIES = [remat.everything(), remat.nothing(), remat.dots(), remat.dots(batch=False)]
SOME_POLICIES = [
    pytest.param(policy, id=str(policy), marks=[] if policy == remat.dots() else pytest.mark.slow)
    for policy in POLICIES
]
"""For what has to be compiled anew for each."""


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_without_compilation_gradients_are_equal_bit_for_bit(policy):
    """One operation after the other: nothing but the rematerialisation differs, so nothing may."""
    params, x = init_layers(1, 16), tokens(2, 8, 16)
    one = jax.tree.map(lambda leaf: leaf[0], params)
    with jax.disable_jit():
        plain = jax.grad(lambda p: (layer(p, x) ** 2).mean())(one)
        again = jax.grad(lambda p: (remat.wrap(layer, policy)(p, x) ** 2).mean())(one)
    assert largest_difference(plain, again) == 0


@pytest.mark.parametrize("loss", [scanned, pytest.param(unrolled, marks=pytest.mark.slow), by_component])
def test_planned_gradients_differ_by_no_more_than_rounding(loss):
    params, x = init_layers(4, 32), tokens(2, 16, 32)
    planned = remat.plan(loss, params, x, budget=remat.fraction(0.6), confirm=False)
    assert planned.report.row("automatic").recomputed_flops > 0
    plain = jax.jit(jax.value_and_grad(loss))(params, x)
    again = jax.jit(jax.value_and_grad(planned))(params, x)
    assert largest_difference(plain, again) <= EPSILONS


@pytest.mark.parametrize("policy", SOME_POLICIES)
def test_assigned_gradients_differ_by_no_more_than_rounding(policy):
    params, x = init_layers(3, 16), tokens(2, 8, 16)
    assigned = remat.assign(unrolled, {"layer": remat.every(2, policy)})
    plain = jax.jit(jax.value_and_grad(unrolled))(params, x)
    assert largest_difference(plain, jax.jit(jax.value_and_grad(assigned))(params, x)) <= EPSILONS


@pytest.mark.parametrize("group", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_scan_over_layers_in_groups(group):
    params, x = init_layers(6, 16), tokens(2, 8, 16)

    def loss(p, h):
        step = lambda c, w: (layer(w, c), c.mean())  # noqa: E731
        last, means = remat.scan_layers(step, h, p, remat.nothing(), group=group)
        return jnp.mean(last**2) + means.sum()

    def plain(p, h):
        last, means = jax.lax.scan(lambda c, w: (layer(w, c), c.mean()), h, p)
        return jnp.mean(last**2) + means.sum()

    expected = jax.jit(jax.value_and_grad(plain))(params, x)
    assert largest_difference(expected, jax.jit(jax.value_and_grad(loss))(params, x)) <= EPSILONS


def test_automatic_works_for_a_batch_of_gradients():
    params, x = init_layers(3, 16), tokens(4, 8, 16)
    loss = remat.automatic(scanned, budget=remat.fraction(0.6), confirm=False)
    rows = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(params, x[:, None])
    expected = jax.jit(jax.vmap(jax.grad(scanned), in_axes=(None, 0)))(params, x[:, None])
    assert largest_difference(expected, rows) <= EPSILONS


@pytest.mark.slow
def test_automatic_can_be_differentiated_twice():
    params, x = init_layers(3, 16), tokens(4, 8, 16)
    loss = remat.automatic(scanned, budget=remat.fraction(0.6), confirm=False)
    direction = jax.tree.map(jnp.ones_like, params)
    turned = jax.jit(lambda p: jax.jvp(lambda q: jax.grad(loss)(q, x), (p,), (direction,))[1])(params)
    expected = jax.jit(lambda p: jax.jvp(lambda q: jax.grad(scanned)(q, x), (p,), (direction,))[1])(params)
    assert largest_difference(expected, turned) <= 20 * EPSILONS


def test_random_masks_are_the_same_when_computed_again():
    def dropped(weights, key):
        def step(h, w):
            h, k = h
            k, mine = jax.random.split(k)
            keep = jax.random.bernoulli(mine, 0.5, h.shape)
            return (jnp.where(keep, jnp.sin(h @ w), 0.0), k), None

        return jnp.sum(jax.lax.scan(step, (jnp.ones((4, 8)), key), weights)[0][0])

    weights, key = jax.random.normal(jax.random.key(0), (5, 8, 8)), jax.random.key(7)
    planned = remat.plan(dropped, weights, key, budget=remat.fraction(0.8), confirm=False)
    assert planned.report.row("automatic").kept_bytes < planned.report.row("none").kept_bytes
    assert largest_difference(jax.grad(dropped)(weights, key), jax.grad(planned)(weights, key)) <= EPSILONS


def test_compiled_memory_of_a_scan_keeps_the_budget():
    params, x = init_layers(8, 32), tokens(4, 32, 32)
    report = remat.plan(scanned, params, x, budget=remat.fraction(0.4)).report
    none, chosen = report.row("none"), report.row("automatic")
    assert chosen.compiled_bytes <= report.budget_bytes <= 0.4 * none.compiled_bytes
    assert chosen.predicted_bytes == pytest.approx(chosen.compiled_bytes, rel=0.25)
    assert chosen.recomputed_flops < report.row("nothing").recomputed_flops


class NnxBlock(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(nnx.gelu(self.up(x)))


class NnxModel(nnx.Module):
    def __init__(self, block: type, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([block(8, rngs) for _ in range(3)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x


def _nnx_loss(model, x):
    return (model(x) ** 2).mean()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_nnx_class_and_function_under_a_policy(policy):
    x = tokens(2, 4, 8)
    expected = nnx.grad(_nnx_loss)(NnxModel(NnxBlock, nnx.Rngs(0)), x)
    wrapped = nnx.grad(_nnx_loss)(NnxModel(remat.wrap(NnxBlock, policy), nnx.Rngs(0)), x)
    assert largest_difference(nnx.to_pure_dict(expected), nnx.to_pure_dict(wrapped)) <= EPSILONS
    function = remat.wrap(_nnx_loss, policy)
    found = nnx.grad(function)(NnxModel(NnxBlock, nnx.Rngs(0)), x)
    assert largest_difference(nnx.to_pure_dict(expected), nnx.to_pure_dict(found)) <= EPSILONS


def test_nnx_model_with_marked_blocks_is_planned():
    model, x = NnxModel(remat.block(NnxBlock, "layer"), nnx.Rngs(0)), tokens(4, 16, 8)
    planned = remat.plan(_nnx_loss, model, x, budget=remat.fraction(0.7))
    assert {kept.region for kept in planned.regions} == {"layer"}
    expected, found = nnx.grad(_nnx_loss)(model, x), nnx.grad(planned)(model, x)
    assert largest_difference(nnx.to_pure_dict(expected), nnx.to_pure_dict(found)) <= EPSILONS


def test_nnx_module_that_changes_itself_is_refused():
    class Counting(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layer = NnxBlock(8, rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.dropout(remat.wrap(self.layer, remat.nothing())(x))

    with pytest.raises(ValueError, match="changes its arguments in place"):
        remat.plan(_nnx_loss, Counting(nnx.Rngs(0)), tokens(1, 2, 8), budget=remat.fraction(0.5))


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(x)))


class LinenModel(nn.Module):
    block: type

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for index in range(3):
            x = self.block(name=f"layer_{index}")(x)
        return x


def _linen_loss(block):
    return lambda params, x: (LinenModel(block).apply(params, x) ** 2).mean()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_linen_class_under_a_policy(policy):
    x = tokens(2, 4, 8)
    params = LinenModel(LinenBlock).init(jax.random.key(0), x)
    expected = jax.grad(_linen_loss(LinenBlock))(params, x)
    assert largest_difference(expected, jax.grad(_linen_loss(remat.wrap(LinenBlock, policy)))(params, x)) <= EPSILONS


def test_linen_model_with_marked_blocks_is_planned():
    x = tokens(4, 16, 8)
    params = LinenModel(LinenBlock).init(jax.random.key(0), x)
    planned = remat.plan(_linen_loss(remat.block(LinenBlock, "layer")), params, x, budget=remat.fraction(0.7))
    assert [kept.region for kept in planned.regions] == ["layer"] * 3
    expected = jax.grad(_linen_loss(LinenBlock))(params, x)
    assert largest_difference(expected, jax.grad(planned)(params, x)) <= EPSILONS


def test_linen_instance_is_refused():
    with pytest.raises(TypeError, match="target: found an instance of LinenBlock, allowed: the class"):
        remat.wrap(LinenBlock(), remat.nothing())
