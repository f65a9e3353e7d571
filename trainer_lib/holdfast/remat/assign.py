"""Policies for the marked blocks of a function, by name: per component, or for every N-th layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from holdfast.remat.analysis import under
from holdfast.remat.checks import require_callable, require_int
from holdfast.remat.remat_policies import Everything, Policy, require_policy
from holdfast.remat.traced_program import Path, Rebuild, Rewriter, body_of, mark_of, trace


@dataclass(frozen=True)
class EveryNth:
    """One policy for every ``n``-th block of a name, starting with the first, and another for the blocks between."""

    n: int
    policy: Policy
    otherwise: Policy

    def __post_init__(self) -> None:
        require_int("every.n", self.n, minimum=1)
        require_policy("every.policy", self.policy)
        require_policy("every.otherwise", self.otherwise)

    def of(self, index: int) -> Policy:
        """The policy of the block with this index, counted from 0, among the blocks of its name."""
        return self.policy if index % self.n == 0 else self.otherwise


def every(n: int, policy: Policy, otherwise: Policy | None = None) -> EveryNth:
    """A choice for ``assign`` that alternates between two policies.

    Args:
        n: distance of the blocks under ``policy``, 1 or more.
        policy: for blocks 0, n, 2n ... of a name.
        otherwise: for the other blocks; default: keep everything.

    Raises:
        ValueError: ``n`` is below 1.
        TypeError: a policy is something else.
    """
    return EveryNth(n, policy, Everything() if otherwise is None else otherwise)


def assign(function: Callable[..., Any], choices: Mapping[str, Policy | EveryNth]) -> Callable[..., Any]:
    """``function`` with a policy for each marked block whose name is in ``choices``; other blocks stay marked.

    Of nested blocks, the outermost one with a choice decides for everything inside it. A block in the body of a scan is one
    block, so all iterations share its policy.

    Raises:
        TypeError: a choice is neither a policy nor ``every(...)``.
        ValueError: at the first call, a name that no block of the function has.
    """
    require_callable("function", function)
    for name, choice in choices.items():
        if not isinstance(choice, EveryNth):
            require_policy(f"choices[{name!r}]", choice)

    def call(*args: Any) -> Any:
        program = trace(function, args)
        bodies, found = _bodies(program.closed, choices)
        if missing := sorted(set(choices) - found):
            allowed = ", ".join(sorted(found)) or "none: the function has no marked block (see holdfast.remat.block)"
            raise ValueError(f"choices[{missing[0]!r}]: found no block of this name, allowed: {allowed}")
        leaves = jax.tree.leaves(args)
        return jax.tree.unflatten(program.out_tree, Rewriter(bodies, keep_marks=True).run(program.closed, leaves))

    return call


def _bodies(closed: core.ClosedJaxpr, choices: Mapping[str, Policy | EveryNth]) -> tuple[dict[Path, Rebuild], set[str]]:
    """A body for each block that has a choice, and the names of all blocks that were found."""
    bodies: dict[Path, Rebuild] = {}
    met: dict[str, int] = {}

    def walk(jaxpr: core.Jaxpr, path: Path) -> None:
        for index, eqn in enumerate(jaxpr.eqns):
            inner, mark, place = body_of(eqn), mark_of(eqn), (*path, index)
            if inner is None:
                continue
            choice = None if mark is None else choices.get(mark)
            if mark is not None:
                met[mark] = met.get(mark, -1) + 1
                if choice is not None:
                    bodies[place] = under(choice.of(met[mark]) if isinstance(choice, EveryNth) else choice)
            if choice is None:
                walk(inner.jaxpr, place)

    walk(closed.jaxpr, ())
    return bodies, set(met)
