"""The parts of a program whose kept values can be chosen: marked blocks, and bodies of scans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from jax.extend import core

from holdfast.remat.traced_program import CALLS, REMAT, Path, body_of, has_mark, mark_of


@dataclass(frozen=True)
class Input:
    """What is known about an input of a part of the program.

    ``varied``: whether it depends on an argument that the program is differentiated by. ``held``: how many copies of it exist
    during the whole program; 0 for an argument of the program or a slice of one, which is in memory anyway. ``stable``:
    whether it is the same in every iteration of the innermost scan.
    """

    varied: bool
    held: int
    stable: bool = False


@dataclass(frozen=True)
class Region:
    """A part of the program whose kept values can be chosen.

    ``repeats``: how often it runs in one run of the program, and so how many copies exist of a value that it keeps.
    ``once``: the same for a value that does not change between iterations of its scan.
    """

    path: Path
    name: str
    kind: Literal["block", "scan"]
    closed: core.ClosedJaxpr
    inputs: tuple[Input, ...]
    repeats: int
    once: int

    def key(self) -> object:
        """Equal for regions that compute the same under the same conditions, such as the layers of a model."""
        return str(self.closed), self.inputs, self.repeats, self.once, self.kind


def find_regions(closed: core.ClosedJaxpr, varied: Sequence[bool]) -> list[Region]:
    """All regions of a program whose inputs are ``varied`` or not, in the order in which they run.

    A marked block is one region, whatever it contains. The body of a scan is one region, unless blocks inside it are marked:
    then these are the regions. Branches, loops and functions with custom derivatives are left as they are.
    """
    finder = _Finder([])
    finder.walk(closed, [Input(v, held=0) for v in varied], repeats=1, once=1, path=())
    return finder.regions


@dataclass(frozen=True)
class _Finder:
    regions: list[Region]

    def walk(
        self, closed: core.ClosedJaxpr, inputs: Sequence[Input], *, repeats: int, once: int, path: Path
    ) -> list[Input]:
        """Add the regions of a program and return what is known about its outputs.

        Args:
            closed: the program.
            inputs: what is known about its inputs.
            repeats: how often it runs in one run of the outermost program.
            once: how often a value is computed that is the same in every iteration of the innermost scan.
            path: where it is in the outermost program.
        """
        env: dict[Any, Input] = dict.fromkeys(closed.jaxpr.constvars, Input(varied=False, held=0, stable=True))
        env.update(zip(closed.jaxpr.invars, inputs, strict=True))

        def known(atom: Any) -> Input:
            return Input(varied=False, held=0, stable=True) if isinstance(atom, core.Literal) else env[atom]

        for index, eqn in enumerate(closed.jaxpr.eqns):
            given = [known(a) for a in eqn.invars]
            stable = all(i.stable for i in given)
            held = once if stable else repeats
            varied = propagate(eqn, [i.varied for i in given])
            out = [Input(v, held, stable) for v in varied]
            inner, place = body_of(eqn), (*path, index)
            if inner is not None:
                out = self._inside(eqn, inner, given, repeats=repeats, once=once, path=place) or out
            env.update(zip(eqn.outvars, out, strict=True))
        return [known(a) for a in closed.jaxpr.outvars]

    def _inside(
        self, eqn: core.JaxprEqn, inner: core.ClosedJaxpr, given: list[Input], *, repeats: int, once: int, path: Path
    ) -> list[Input] | None:
        mark = mark_of(eqn)
        if mark is not None:
            self._add(Region(path, mark, "block", inner, tuple(given), repeats, once))
        elif eqn.primitive.name == "scan":
            self._scan(eqn, inner, given, repeats=repeats, path=path)
        elif eqn.primitive.name in CALLS:
            return self.walk(inner, given, repeats=repeats, once=once, path=path)
        return None

    def _scan(
        self, eqn: core.JaxprEqn, inner: core.ClosedJaxpr, given: list[Input], *, repeats: int, path: Path
    ) -> None:
        length = int(eqn.params["length"])
        rounds = _rounds(eqn, given, repeats * length)
        if has_mark(inner.jaxpr):
            self.walk(inner, rounds, repeats=repeats * length, once=repeats, path=path)
        elif length > 1:
            self._add(Region(path, "scan", "scan", inner, tuple(rounds), repeats * length, repeats))

    def _add(self, region: Region) -> None:
        if any(i.varied for i in region.inputs):
            self.regions.append(region)


def _rounds(eqn: core.JaxprEqn, given: list[Input], copies: int) -> list[Input]:
    """What is known about the inputs of a scan's body."""
    consts_count, carry_count = eqn.params["num_consts"], eqn.params["num_carry"]
    carry_end = consts_count + carry_count
    varied = [i.varied for i in given]
    carry_varied = _carry(eqn, varied)
    consts = [Input(i.varied, i.held, stable=True) for i in given[:consts_count]]
    carry = [Input(v, copies) for v in carry_varied]
    xs = [Input(i.varied, copies if i.held else 0) for i in given[carry_end:]]
    return [*consts, *carry, *xs]


def _carry(eqn: core.JaxprEqn, varied: Sequence[bool]) -> list[bool]:
    """Which carried values depend on a varied input, in the first iteration or a later one."""
    consts_count, carry_count = eqn.params["num_consts"], eqn.params["num_carry"]
    end = consts_count + carry_count
    carry = list(varied[consts_count:end])
    while True:
        inputs = [*varied[:consts_count], *carry, *varied[end:]]
        out = varied_outputs(eqn.params["jaxpr"].jaxpr, inputs)[:carry_count]
        after = [a or b for a, b in zip(carry, out, strict=True)]
        if after == carry:
            return carry
        carry = after


def varied_outputs(jaxpr: core.Jaxpr, varied: Sequence[bool]) -> list[bool]:
    """Which outputs depend differentiably on a varied input."""
    env: dict[Any, bool] = dict(zip(jaxpr.invars, varied, strict=True))

    def read(atom: Any) -> bool:
        return False if isinstance(atom, core.Literal) else env.get(atom, False)

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, propagate(eqn, [read(a) for a in eqn.invars]), strict=True))
    return [read(a) for a in jaxpr.outvars]


def propagate(eqn: core.JaxprEqn, varied: list[bool]) -> list[bool]:
    """Which outputs of an equation are varied; every real output, for an equation whose inside is not examined."""
    name, inner = eqn.primitive.name, body_of(eqn)
    if name == "stop_gradient" or not any(varied):
        return [False] * len(eqn.outvars)
    if name == "scan":
        consts_count, carry_count = eqn.params["num_consts"], eqn.params["num_carry"]
        carry = _carry(eqn, varied)
        inputs = [*varied[:consts_count], *carry, *varied[consts_count + carry_count :]]
        return varied_outputs(eqn.params["jaxpr"].jaxpr, inputs)
    if inner is not None and (name in CALLS or name in REMAT):
        return varied_outputs(inner.jaxpr, varied)
    return [is_real(v.aval) for v in eqn.outvars]


def is_real(aval: Any) -> bool:
    """Whether a value can have a derivative."""
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))
