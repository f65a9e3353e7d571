"""Named policies, marks and their errors."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from holdfast import remat
from holdfast.remat.measure import kept_bytes
from tests.support.remat.models import by_component, init_layers, perceptron, scanned, tokens, unrolled

WEIGHT, INPUT = jnp.ones((8, 16)), jnp.ones((4, 8))


def _layer(weight, x):
    wide = checkpoint_name(x @ weight, "wide")
    bent = checkpoint_name(jnp.sin(wide), "bent")
    return (jnp.sin(bent * bent) @ weight.T).sum()


def _kept(policy):
    body = remat.wrap(_layer, policy)
    return kept_bytes(lambda *a: [body(*a)], [jax.typeof(WEIGHT), jax.typeof(INPUT)], [True, True])


def test_policies_keep_what_they_say():
    one = 4 * 16 * 4
    assert _kept(remat.nothing()) == 0
    assert _kept(remat.names("wide")) == one
    assert _kept(remat.names("wide", "bent")) == 2 * one
    assert _kept(remat.names_but("bent")) == one
    assert _kept(remat.dots()) == one
    assert _kept(remat.dots(batch=False)) == one
    assert _kept(remat.where(lambda primitive, avals, params: primitive == "sin")) >= one
    assert _kept(remat.everything()) > 2 * one
    assert _kept(remat.any_of(remat.names("bent"), remat.dots())) == 2 * one


def test_batched_products_are_kept_by_dots_alone():
    def scores(x):
        return jnp.sin(jnp.einsum("bij,bkj->bik", x, x)).sum()

    x = jax.ShapeDtypeStruct((2, 4, 8), jnp.float32)
    kept = {
        batch: kept_bytes(lambda v, b=batch: [remat.wrap(scores, remat.dots(batch=b))(v)], [x], [True])
        for batch in (True, False)
    }
    assert kept == {True: 2 * 4 * 4 * 4, False: 0}


def test_values_are_moved_to_the_host_where_a_policy_says_so():
    for policy in (
        remat.names(offload=("wide",)),
        remat.offload_dots(),
        remat.any_of(remat.names("bent"), remat.offload_dots()),
    ):
        traced = str(jax.make_jaxpr(jax.grad(remat.wrap(_layer, policy)))(WEIGHT, INPUT))
        assert "memory_kind=pinned_host" in traced or "pinned_host" in traced or "<host>" in traced


@pytest.mark.parametrize(
    ("make", "error", "parts"),
    [
        (remat.names, ValueError, ["names", "no name"]),
        (lambda: remat.names(""), ValueError, ["names.save", "''", "non-empty"]),
        (lambda: remat.names("a", offload=("a",)), ValueError, ["names.offload", "'a'"]),
        (lambda: remat.names(offload="wide"), TypeError, ["names.offload", "'wide'", "several"]),
        (remat.names_but, ValueError, ["names_but", "no name"]),
        (lambda: remat.dots(batch=1), TypeError, ["dots.batch", "1", "True or False"]),
        (lambda: remat.where("sin"), TypeError, ["where.predicate", "'sin'", "callable"]),
        (remat.any_of, ValueError, ["any_of", "no policy"]),
        (lambda: remat.any_of(len), TypeError, ["any_of", "len", "nothing()"]),
        (lambda: remat.wrap(_layer, jax.checkpoint_policies.dots_saveable), TypeError, ["policy", "dots()"]),
        (lambda: remat.wrap(3, remat.dots()), TypeError, ["target", "3", "function"]),
        (lambda: remat.block(_layer, ""), ValueError, ["name", "''"]),
        (lambda: remat.fraction(0), ValueError, ["fraction", "0", "above 0"]),
        (lambda: remat.fraction(1.5), ValueError, ["fraction", "1.5", "at most 1"]),
        (lambda: remat.bytes_per_device(0), ValueError, ["bytes_per_device", "0", "1 or more"]),
        (lambda: remat.every(0, remat.dots()), ValueError, ["every.n", "0"]),
        (lambda: remat.assign(unrolled, {"layer": "dots"}), TypeError, ["choices['layer']", "'dots'"]),
        (lambda: _plan(budget=0.5), TypeError, ["budget", "0.5", "fraction(share)"]),
        (lambda: _plan(argnums=2), ValueError, ["argnums", "2", "0 to 1"]),
        (lambda: _plan(argnums=()), ValueError, ["argnums", "floating-point"]),
        (lambda: _plan(shards=0), ValueError, ["shards", "0"]),
        (lambda: _plan(confirm="yes"), TypeError, ["confirm", "'yes'"]),
        (lambda: _plan(unrolled, confirm=True), ValueError, ["confirm", "True", "scans"]),
        (lambda: _plan(lambda p, x: (p["up"] @ p["down"]).sum()), ValueError, ["function", "no region", "block"]),
        (lambda: remat.scan_layers(len, 0, jnp.ones((4, 2)), remat.dots(), group=3), ValueError, ["group", "3", "4"]),
        (lambda: remat.scan_layers(len, 0, [jnp.ones(3), jnp.ones(4)], remat.dots()), ValueError, ["[3, 4]"]),
    ],
)
def test_wrong_input_names_argument_found_and_allowed(make, error, parts):
    with pytest.raises(error) as caught:
        make()
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def _plan(loss=scanned, **options):
    return remat.plan(loss, init_layers(2, 8), tokens(1, 4, 8), **{"budget": remat.fraction(0.5)} | options)


def test_a_budget_below_the_least_says_the_least_that_fits():
    params, x = init_layers(4, 16), tokens(2, 8, 16)
    with pytest.raises(remat.DoesNotFit) as caught:
        remat.plan(scanned, params, x, budget=remat.bytes_per_device(64), confirm=False)
    assert caught.value.budget_bytes == 64
    least = remat.bytes_per_device(caught.value.least_bytes)
    assert remat.plan(scanned, params, x, budget=least, confirm=False).report.row("automatic").flops_ratio > 1


@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8, 0.9])
def test_a_plan_that_nothing_confirmed_fits_by_its_own_prediction(share):
    params = [jax.random.normal(jax.random.key(seed), (32, 32)) for seed in range(6)]
    report = remat.plan(perceptron, params, jnp.ones((64, 32)), budget=remat.fraction(share), confirm=False).report
    chosen = report.row("automatic")
    assert chosen.compiled_bytes is None
    assert chosen.predicted_bytes <= report.budget_bytes


def test_the_least_that_an_error_names_is_above_the_budget():
    def reused(params, x):
        block = remat.block(lambda matrix, h, first: jnp.tanh(jnp.sin(h @ matrix) * 2.0) * first, "reused")
        first = h = jnp.sin(x)
        for matrix in params:
            h = block(matrix, h, first)
        return jnp.mean(h**2)

    params = [jax.random.normal(jax.random.key(seed), (32, 32)) for seed in range(6)]
    with pytest.raises(remat.DoesNotFit) as caught:
        remat.plan(reused, params, jnp.ones((64, 32)), budget=remat.fraction(0.3), confirm=False)
    assert caught.value.least_bytes > caught.value.budget_bytes
    report = remat.plan(reused, params, jnp.ones((64, 32)), budget=remat.fraction(0.5), confirm=False).report
    assert report.row("automatic").predicted_bytes <= report.budget_bytes


def test_predicate_without_an_answer_is_refused():
    with pytest.raises(TypeError, match=r"where.predicate: found None for 'dot_general'"):
        jax.grad(remat.wrap(_layer, remat.where(lambda *_: None)))(WEIGHT, INPUT)


def test_plan_refuses_other_shapes_and_structures():
    planned = _plan(confirm=False, budget=remat.fraction(0.9))
    with pytest.raises(TypeError, match=r"args\[1\]: found float32\[2,4,8\], allowed: float32\[1,4,8\]"):
        planned(init_layers(2, 8), tokens(2, 4, 8))
    with pytest.raises(TypeError, match="structure"):
        planned(init_layers(2, 8))


def test_blocks_take_the_policies_of_their_names():
    params, x = init_layers(4, 16), tokens(2, 8, 16)
    leaves, tree = jax.tree.flatten((params, x))

    def kept(choices):
        loss = remat.assign(by_component, choices)
        body = lambda *v: [loss(*jax.tree.unflatten(tree, v))]  # noqa: E731
        return kept_bytes(body, [jax.typeof(leaf) for leaf in leaves], [True] * (len(leaves) - 1) + [False])

    everything, attention = kept({}), kept({"attention": remat.nothing()})
    half = kept({"attention": remat.every(2, remat.nothing())})
    both = kept({"attention": remat.nothing(), "feed_forward": remat.nothing()})
    assert both < attention < half < everything
    assert everything - half == pytest.approx(
        (everything - attention) / 2, rel=0.05
    )  # the first one's input is an argument
    with pytest.raises(ValueError, match=r"choices\['mlp'\]: found no block of this name, allowed: attention, feed"):
        kept({"mlp": remat.nothing()})


def test_report_as_table_and_chart():
    import json
    import xml.etree.ElementTree as ET

    from tools import remat_chart

    report = _plan(confirm=False, budget=remat.fraction(0.8)).report
    lines = report.table().splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["none", "nothing", "dots"]
    assert any(line.startswith("*") and "automatic" in line for line in lines)
    drawn = ET.fromstring(remat_chart.chart(json.loads(json.dumps(report.to_jsonable()))))
    circles = drawn.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len(report.rows)
    with pytest.raises(KeyError, match="found 'best', allowed: none, nothing"):
        report.row("best")


def test_importing_holdfast_imports_no_jax():
    code = "import sys, holdfast; assert not {'jax', 'scipy', 'numpy'} & set(sys.modules), 'imported'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
