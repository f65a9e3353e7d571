"""A function to differentiate, divided into the regions whose kept values can be chosen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from holdfast.remat.combine import Group, Selection, keep_all
from holdfast.remat.graph import graph_of, kept_only
from holdfast.remat.measure import Traced, measure
from holdfast.remat.regions import Region, find_regions, is_real
from holdfast.remat.remat_policies import Policy
from holdfast.remat.solve import part_of
from holdfast.remat.traced_program import Body, Path, Rebuild, Rewriter, TracedProgram, trace


@dataclass(frozen=True)
class ProgramAnalysis:
    """A traced function and its regions. Bytes are those of the traced program, that is, of all shards.

    ``active``: which leaves of the arguments are differentiated. ``everything``: what the function keeps and computes
    without rematerialisation. ``fixed_bytes``: kept outside all regions. ``seconds``: how long the analysis took.
    """

    program: TracedProgram
    active: tuple[bool, ...]
    leaves: tuple[Any, ...]
    regions: tuple[Region, ...]
    groups: tuple[Group, ...]
    everything: Traced
    fixed_bytes: int
    seconds: float

    @property
    def names(self) -> dict[Path, str]:
        """The names of the regions, by path."""
        return {r.path: r.name for r in self.regions}

    @property
    def compiler_figures_are_valid(self) -> bool:
        """Whether the compiler's memory analysis shows what rematerialisation frees.

        On CPUs it does so only for scans: the order of operations in unrolled layers defeats rematerialisation there.
        """
        return jax.default_backend() != "cpu" or all(r.repeats > 1 for r in self.regions)

    def body(self, selection: Selection) -> Body:
        """The function with each region as ``selection`` chooses."""
        return self._with({path: _keeping(choice.keep) for path, choice in selection.choices.items()})

    def policy_body(self, policy: Policy) -> Body:
        """The function with each region under one policy."""
        return self._with({r.path: under(policy) for r in self.regions})

    def _with(self, bodies: dict[Path, Rebuild]) -> Body:
        rewriter = Rewriter(bodies)
        return lambda *leaves: rewriter.run(self.program.closed, leaves)

    def notes(self, *, confirmed: bool) -> tuple[str, ...]:
        """What the figures do not show on this backend."""
        cpu = jax.default_backend() == "cpu"
        notes = []
        if cpu and confirmed:
            notes.append("compiled on CPU: other devices fuse and schedule differently; plan again where you train")
        if cpu and not self.compiler_figures_are_valid:
            notes.append("not confirmed: on CPU the compiler's figures are not valid for layers outside scans")
        return tuple(notes)


def under(policy: Policy) -> Rebuild:
    """A region under ``policy``."""

    def rebuild(closed: Any, in_scan: bool) -> Body:  # noqa: FBT001
        plain = Rewriter({})
        return jax.checkpoint(
            lambda *args: plain.run(closed, args), policy=policy.jax_policy(), prevent_cse=not in_scan
        )

    return rebuild


def _keeping(keep: frozenset[str] | None) -> Rebuild:
    """A region that keeps the values named in ``keep``; None keeps everything, without a checkpoint."""

    def rebuild(closed: Any, in_scan: bool) -> Body:  # noqa: FBT001
        if keep is None:
            return lambda *args: Rewriter({}).run(closed, args)
        return kept_only(closed, keep, in_scan=in_scan)

    return rebuild


def analyse(function: Callable[..., Any], args: tuple[Any, ...], argnums: int | tuple[int, ...]) -> ProgramAnalysis:
    """Trace a function and find its regions.

    Args:
        function: pure, of pytrees of arrays.
        args: examples of its arguments, arrays or ``jax.ShapeDtypeStruct``.
        argnums: positions of the arguments to differentiate by.

    Raises:
        ValueError: there is no region, or no floating-point argument in ``argnums``.
    """
    active = _active(args, argnums)
    program = trace(function, args)
    began = time.monotonic()
    regions = find_regions(program.closed, active)
    if not regions:
        raise ValueError(
            "function: found no region, allowed: a function with a scan over layers, or with parts marked by"
            " holdfast.remat.block, that depends on the arguments in argnums"
        )
    groups = _groups(regions)
    seconds = time.monotonic() - began
    plain = Rewriter({})
    everything = measure(lambda *leaves: plain.run(program.closed, leaves), program.avals, active)
    fixed = max(0, everything.kept_bytes - keep_all(groups).kept_bytes)
    leaves = tuple(jax.tree.leaves(args))
    return ProgramAnalysis(program, active, leaves, tuple(regions), groups, everything, fixed, seconds)


def _groups(regions: list[Region]) -> tuple[Group, ...]:
    alike: dict[object, list[Region]] = {}
    for region in regions:
        alike.setdefault(region.key(), []).append(region)
    made = []
    for members in alike.values():
        graph = graph_of(members[0])
        made.append(Group(tuple(r.path for r in members), graph, part_of(graph)))
    return tuple(made)


def _active(args: tuple[Any, ...], argnums: int | tuple[int, ...]) -> tuple[bool, ...]:
    """Which leaves of the arguments are in ``argnums`` and floating-point."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(args):
            raise ValueError(f"argnums: found {number!r}, allowed: 0 to {len(args) - 1}, an argument's position")
    active = tuple(
        position in numbers and is_real(jax.typeof(leaf) if not hasattr(leaf, "dtype") else leaf)
        for position, arg in enumerate(args)
        for leaf in jax.tree.leaves(arg)
    )
    if not any(active):
        raise ValueError(f"argnums: found no floating-point array in {numbers}, allowed: arguments that have some")
    return active
