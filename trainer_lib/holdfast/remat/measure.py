"""What a differentiated program keeps and computes, by a trace, and the memory it takes, by a compilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from holdfast.remat.costs import bytes_of, live_flops_of
from holdfast.remat.regions import is_real
from holdfast.remat.traced_program import Body

_shape: Final[Callable[..., jax.ShapeDtypeStruct]] = jax.ShapeDtypeStruct


@dataclass(frozen=True)
class Traced:
    """``kept_bytes``: between forward and backward pass, besides arguments and results. ``flops``: of both passes."""

    kept_bytes: int
    flops: int


def measure(body: Body, avals: Sequence[Any], active: Sequence[bool]) -> Traced:
    """Trace a flat function and its gradient. This compiles nothing and needs no device.

    Args:
        body: a function of flat inputs.
        avals: their shapes and dtypes.
        active: which inputs to differentiate by.
    """
    whole = jax.make_jaxpr(gradient(body, active))(*shapes_of(avals)).jaxpr
    return Traced(kept_bytes(body, avals, active), live_flops_of(whole))


def kept_bytes(body: Body, avals: Sequence[Any], active: Sequence[bool]) -> int:
    """Bytes that a flat function keeps for its gradient besides its inputs and outputs, by a trace.

    Args:
        body: a function of flat inputs.
        avals: their shapes and dtypes.
        active: which inputs to differentiate by.
    """
    place = [i for i, a in enumerate(active) if a]

    def forward(*values: Any) -> Any:
        def of_active(*some: Any) -> Any:
            given = list(values)
            for index, value in zip(place, some, strict=True):
                given[index] = value
            out = list(body(*given))
            counts.append(len(out))
            return out

        return jax.vjp(of_active, *[values[i] for i in place])

    counts: list[int] = []
    jaxpr = jax.make_jaxpr(forward)(*shapes_of(avals)).jaxpr
    out = counts[-1]
    others = {v for v in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars[:out]) if isinstance(v, core.Var)}
    kept = {v for v in jaxpr.outvars[out:] if isinstance(v, core.Var)} - others
    return sum(bytes_of(v.aval) for v in kept)


def shapes_of(avals: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    """The abstract values as example arguments for a trace."""
    return [_shape(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals]


def gradient(body: Body, active: Sequence[bool]) -> Body:
    """A function from flat inputs to flat outputs, followed by the gradients of their sum by the active inputs."""
    place = [i for i, a in enumerate(active) if a]

    def run(*values: Any) -> list[Any]:
        def of_active(*some: Any) -> list[Any]:
            given = list(values)
            for index, value in zip(place, some, strict=True):
                given[index] = value
            return list(body(*given))

        out, pull = jax.vjp(of_active, *[values[i] for i in place])
        ones = [jnp.ones_like(o) if is_real(o) else np.zeros(o.shape, jax.dtypes.float0) for o in out]
        return [*out, *pull(ones)]

    return run


def compiled_bytes(body: Body, leaves: Sequence[Any], active: Sequence[bool]) -> int:
    """Bytes of temporaries per device of the compiled gradient, without its arguments and results.

    Compiles ahead of time and runs nothing.

    Args:
        body: a function of flat inputs.
        leaves: examples of the inputs.
        active: which inputs to differentiate by.

    Raises:
        JaxRuntimeError: the compiler ran out of memory.
        RuntimeError: the backend has no memory analysis.
    """
    compiled = jax.jit(gradient(body, active)).lower(*leaves).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise RuntimeError(f"memory analysis: found none on {jax.default_backend()!r}, allowed: confirm=False there")
    return int(analysis.temp_size_in_bytes)
