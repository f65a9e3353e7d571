"""FLOPs and bytes of programs, from their shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from jax.extend import core

_FREE: Final = frozenset(
    {
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "squeeze",
        "expand_dims",
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "concatenate",
        "pad",
        "rev",
        "gather",
        "convert_element_type",
        "bitcast_convert_type",
        "copy",
        "copy_p",
        "iota",
        "name",
        "stop_gradient",
        "split",
        "select_n",
        "reduce_precision",
        "device_put",
        "sharding_constraint",
        "optimization_barrier",
        "random_wrap",
        "random_unwrap",
    }
)
"""Operations that move data and compute nothing."""

_PER_INPUT: Final = frozenset(
    {
        "reduce_sum",
        "reduce_max",
        "reduce_min",
        "reduce_prod",
        "reduce_and",
        "reduce_or",
        "argmax",
        "argmin",
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "cumlogsumexp",
        "scatter",
        "scatter-add",
        "scatter_add",
        "sort",
        "top_k",
        "reduce_window_sum",
    }
)
"""Operations that count one FLOP per element of the first input, not of the output."""

_RANDOM_OPERATIONS: Final = 100
"""FLOPs per random word: the twenty rounds of Threefry-2x32 (J. Salmon et al., SC 2011), with additions, rotations and key
schedule, rounded to a hundred."""


def bytes_of(aval: Any) -> int:
    """Bytes of a value of this shape and dtype; 0 for values without them, such as tokens."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or dtype is None:
        return 0
    return int(math.prod(shape) * dtype.itemsize)


def size_of(aval: Any) -> int:
    """Number of elements of a value."""
    return int(math.prod(getattr(aval, "shape", ())))


def flops_of(jaxpr: core.Jaxpr) -> int:
    """FLOPs of a program: 2 per multiply-add of products and convolutions, 1 per element of every other computation.

    A scan counts once per iteration, a loop of unknown length once, and a branch as its most expensive case.
    """
    return sum(flops_of_equation(eqn) for eqn in jaxpr.eqns)


def live_flops_of(jaxpr: core.Jaxpr) -> int:
    """FLOPs of a program without equations whose outputs nothing reads, which every compiler removes."""
    live = ancestors(jaxpr, jaxpr.outvars)
    return sum(flops_of_equation(eqn) for eqn in jaxpr.eqns if id(eqn) in live)


def ancestors(jaxpr: core.Jaxpr, outputs: Sequence[Any]) -> set[int]:
    """Identities of the equations that compute the outputs."""
    needed = {v for v in outputs if isinstance(v, core.Var)}
    found: set[int] = set()
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed for v in eqn.outvars):
            found.add(id(eqn))
            needed.update(v for v in eqn.invars if isinstance(v, core.Var))
    return found


def flops_of_equation(eqn: core.JaxprEqn) -> int:
    """FLOPs of one equation; see ``flops_of``."""
    name, params = eqn.primitive.name, eqn.params
    if name in _FREE:
        return 0
    if name == "dot_general":
        return _dot(eqn)
    if name == "conv_general_dilated":
        return _convolution(eqn)
    if name == "cond":
        return max(flops_of(b.jaxpr) for b in params["branches"])
    if name == "pallas_call":
        rounds = math.prod(int(n) for n in params["grid_mapping"].grid)
        return rounds * sum(flops_of(j) for j in core.jaxprs_in_params(params))
    if inner := list(core.jaxprs_in_params(params)):
        return int(params.get("length", 1)) * sum(flops_of(j) for j in inner)
    if name in {"random_bits", "threefry2x32"}:
        return _RANDOM_OPERATIONS * sum(size_of(v.aval) for v in eqn.outvars)
    if name in _PER_INPUT:
        return size_of(eqn.invars[0].aval)
    return sum(size_of(v.aval) for v in eqn.outvars)


def _dot(eqn: core.JaxprEqn) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left: Any = eqn.invars[0].aval
    return 2 * size_of(eqn.outvars[0].aval) * math.prod(int(left.shape[d]) for d in contracted)


def _convolution(eqn: core.JaxprEqn) -> int:
    kernel: Any = eqn.invars[1].aval
    out_features = int(kernel.shape[eqn.params["dimension_numbers"].rhs_spec[0]])
    return 2 * size_of(eqn.outvars[0].aval) * size_of(kernel) // max(out_features, 1)
