"""Policies on functions and modules, and marks that a later choice replaces."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax

from holdfast.remat.checks import require_names
from holdfast.remat.remat_policies import JaxPolicy, Policy, require_policy

Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mark:
    """The policy of a marked block until another is chosen: keep everything. It carries the block's name in the trace."""

    name: str

    def __call__(self, *_: Any, **__: Any) -> bool:
        """Keep every value."""
        return True


def wrap(
    target: Target, policy: Policy, *, prevent_cse: bool = True, static_argnums: int | tuple[int, ...] = ()
) -> Target:
    """``target`` with ``policy`` for what its backward pass keeps; values and gradients stay the same.

    Args:
        target: a function (whose arguments may be NNX modules), a class of NNX or Linen modules, or an NNX module.
        policy: what to keep.
        prevent_cse: insert the barriers that stop the compiler from undoing the rematerialisation. They cost time, and
            are not needed inside ``jax.lax.scan``: set it to False there, and only there.
        static_argnums: positions of arguments that are not arrays; ``self`` of a class counts as 0.

    Raises:
        TypeError: the target or the policy has another type.
    """
    return _checkpointed(
        target, require_policy("policy", policy).jax_policy(), prevent_cse=prevent_cse, static_argnums=static_argnums
    )


def block(target: Target, name: str = "block", *, static_argnums: int | tuple[int, ...] = ()) -> Target:
    """Mark ``target`` as a part of the model for which ``plan`` or ``assign`` choose what is kept.

    Until they do, everything is kept. Mark what repeats: a layer, or its attention and its feed-forward part under separate
    names. Bodies of ``jax.lax.scan`` need no mark.

    Args:
        target: as for ``wrap``.
        name: for reports and ``assign``; several blocks may share it.
        static_argnums: as for ``wrap``.

    Raises:
        TypeError: the target is neither a function nor a module.
        ValueError: the name is empty or not a string.
    """
    require_names("name", [name])
    return _checkpointed(target, Mark(name), prevent_cse=True, static_argnums=static_argnums)


def _checkpointed(
    target: Target, policy: JaxPolicy, *, prevent_cse: bool, static_argnums: int | tuple[int, ...]
) -> Target:
    options: dict[str, Any] = {"policy": policy, "prevent_cse": prevent_cse, "static_argnums": static_argnums}
    linen, nnx = _loaded("flax.linen"), _loaded("flax.nnx")
    if linen and isinstance(target, type) and issubclass(target, linen.Module):
        return cast("Target", linen.remat(target, **options))
    if nnx and isinstance(target, type) and issubclass(target, nnx.Module):
        call = nnx.remat(target.__call__, **options)
        return cast("Target", type(target.__name__, (target,), {"__call__": call, "__doc__": target.__doc__}))
    if linen and isinstance(target, linen.Module):
        raise TypeError(f"target: found an instance of {type(target).__name__}, allowed: the class of a Linen module")
    if isinstance(target, type) or not callable(target):
        raise TypeError(f"target: found {target!r:.100}, allowed: a function, a class of Flax modules or an NNX module")
    if nnx and isinstance(target, nnx.Module):
        return cast("Target", functools.partial(nnx.remat(type(target).__call__, **options), target))
    return cast("Target", _function(target, options))


def _function(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Choose the transform at each call: only NNX's own carries updates of a module's variables out of the function."""
    plain = jax.checkpoint(function, **options)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nnx = _loaded("flax.nnx")
        if nnx and _has_module(nnx, (args, kwargs)):
            return nnx.remat(function, **options)(*args, **kwargs)
        return plain(*args, **kwargs)

    return call


def _has_module(nnx: Any, tree: Any) -> bool:
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, nnx.Module))
    return any(isinstance(leaf, nnx.Module) for leaf in leaves)


def _loaded(module: str) -> Any:
    """The module if it is imported already: a program that passes a Flax module has imported Flax, others never do."""
    return sys.modules.get(module)
