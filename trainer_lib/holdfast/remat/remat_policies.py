"""Policies: what the forward pass keeps for the backward pass. Each becomes a policy of ``jax.checkpoint``.

A policy decides for every value computed inside a checkpointed function: keep it, move it to host memory, or recompute it
when the backward pass needs it. The inputs of the function are always kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import jax

from holdfast.remat.checks import require_callable, require_names

JaxPolicy = Callable[..., Any]
"""``(primitive, *avals, **params)`` -> bool, or one of JAX's own answers for keep, offload and recompute."""

Predicate = Callable[[str, tuple[Any, ...], dict[str, Any]], bool]
"""``(name of the primitive, abstract values of its inputs, its parameters)`` -> whether its outputs are kept."""

_DEVICE: Final = "device"
_HOST: Final = "pinned_host"

_KNOWN: Final = jax.checkpoint_policies
_EVERYTHING: Final[JaxPolicy] = _KNOWN.everything_saveable
_NOTHING: Final[JaxPolicy] = _KNOWN.nothing_saveable
_DOTS: Final[JaxPolicy] = _KNOWN.dots_saveable
_DOTS_WITHOUT_BATCH: Final[JaxPolicy] = _KNOWN.dots_with_no_batch_dims_saveable
_only_names: Final[Callable[..., JaxPolicy]] = _KNOWN.save_only_these_names
_any_names_but: Final[Callable[..., JaxPolicy]] = _KNOWN.save_any_names_but_these
_names_or_offload: Final[Callable[..., JaxPolicy]] = _KNOWN.save_and_offload_only_these_names
_offload_dots: Final[Callable[..., JaxPolicy]] = _KNOWN.offload_dot_with_no_batch_dims


@runtime_checkable
class Policy(Protocol):
    """What a checkpointed function keeps."""

    def jax_policy(self) -> JaxPolicy:
        """The policy as ``jax.checkpoint`` takes it."""


@dataclass(frozen=True)
class Everything:
    """Keep everything that the backward pass needs, as without rematerialisation."""

    def jax_policy(self) -> JaxPolicy:
        """Keeps every value."""
        return _EVERYTHING


@dataclass(frozen=True)
class Nothing:
    """Keep only the inputs and recompute everything else: the least memory, for one more forward pass."""

    def jax_policy(self) -> JaxPolicy:
        """Keeps no value."""
        return _NOTHING


@dataclass(frozen=True)
class Dots:
    """Keep results of matrix products and convolutions; without ``batch``, only of products without a batch dimension.

    Products of activations with weights have no batch dimension. Those of attention have one, and grow with the square of
    the sequence length.
    """

    batch: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.batch, bool):
            raise TypeError(f"dots.batch: found {self.batch!r}, allowed: True or False")

    def jax_policy(self) -> JaxPolicy:
        """Decides by primitive and dimension numbers."""
        return _DOTS if self.batch else _DOTS_WITHOUT_BATCH


@dataclass(frozen=True)
class Names:
    """Keep values named with ``jax.ad_checkpoint.checkpoint_name``: ``save`` on the device, ``offload`` on the host."""

    save: frozenset[str] = frozenset()
    offload: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        require_names("names.save", self.save, empty_allowed=True)
        require_names("names.offload", self.offload, empty_allowed=True)
        if both := sorted(self.save & self.offload):
            raise ValueError(f"names.offload: found {both[0]!r}, which is in names.save too, allowed: one of the two")
        if not self.save | self.offload:
            raise ValueError("names: found no name, allowed: one or more names given to checkpoint_name")

    def jax_policy(self) -> JaxPolicy:
        """Decides by name."""
        if not self.offload:
            return _only_names(*sorted(self.save))
        return _names_or_offload(
            names_which_can_be_saved=sorted(self.save),
            names_which_can_be_offloaded=sorted(self.offload),
            offload_src=_DEVICE,
            offload_dst=_HOST,
        )


@dataclass(frozen=True)
class NamesBut:
    """Keep every named value except these. Values without a name are recomputed."""

    dropped: frozenset[str]

    def __post_init__(self) -> None:
        require_names("names_but", self.dropped)

    def jax_policy(self) -> JaxPolicy:
        """Decides by name. JAX's ``save_anything_except_these_names`` sounds similar but keeps everything, named or not."""
        return _any_names_but(*sorted(self.dropped))


@dataclass(frozen=True)
class OffloadDots:
    """Move results of matrix products without a batch dimension to host memory; recompute the rest."""

    def jax_policy(self) -> JaxPolicy:
        """Decides by primitive and dimension numbers."""
        return _offload_dots(_DEVICE, _HOST)


@dataclass(frozen=True)
class Where:
    """Keep the outputs of the primitives for which a predicate holds."""

    predicate: Predicate

    def __post_init__(self) -> None:
        require_callable("where.predicate", self.predicate)

    def jax_policy(self) -> JaxPolicy:
        """Decides by the predicate, which must return a bool: a forgotten ``return`` would silently keep nothing."""

        def policy(primitive: Any, *avals: Any, **params: Any) -> bool:
            answer = self.predicate(primitive.name, avals, params)
            if not isinstance(answer, bool):
                raise TypeError(f"where.predicate: found {answer!r} for {primitive.name!r}, allowed: True or False")
            return answer

        return policy


@dataclass(frozen=True)
class AnyOfPolicies:
    """Keep what any of the policies keeps. The first policy that keeps a value, or moves it to the host, decides."""

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        if not self.policies:
            raise ValueError("any_of: found no policy, allowed: one or more")
        for policy in self.policies:
            require_policy("any_of", policy)

    def jax_policy(self) -> JaxPolicy:
        """Asks the policies in order. JAX's ``save_from_both_policies`` refuses policies that offload."""
        answers = [p.jax_policy() for p in self.policies]
        recompute = OffloadDots().jax_policy()(None)  # JAX's answer for "recompute" has no public name

        def policy(primitive: Any, *avals: Any, **params: Any) -> Any:
            for answer in answers:
                case = answer(primitive, *avals, **params)
                if case is not False and case is not recompute:
                    return case
            return False

        return policy


def everything() -> Everything:
    """Keep everything, as without rematerialisation."""
    return Everything()


def nothing() -> Nothing:
    """Keep only the inputs."""
    return Nothing()


def dots(*, batch: bool = True) -> Dots:
    """Keep results of matrix products and convolutions; without ``batch``, only of products without a batch dimension."""
    return Dots(batch)


def names(*save: str, offload: tuple[str, ...] = ()) -> Names:
    """Keep values by the name given to ``checkpoint_name``, those in ``offload`` in host memory. Raises ValueError."""
    return Names(
        require_names("names.save", save, empty_allowed=True),
        require_names("names.offload", offload, empty_allowed=True),
    )


def names_but(*dropped: str) -> NamesBut:
    """Keep every named value except these."""
    return NamesBut(require_names("names_but", dropped))


def offload_dots() -> OffloadDots:
    """Move results of matrix products without a batch dimension to host memory."""
    return OffloadDots()


def where(predicate: Predicate) -> Where:
    """Keep outputs of primitives for which ``predicate(name, input avals, params)`` is True."""
    return Where(predicate)


def any_of(*policies: Policy) -> AnyOfPolicies:
    """Keep what any of the policies keeps."""
    return AnyOfPolicies(policies)


def require_policy(where: str, value: object) -> Policy:
    """``value``, the argument named ``where``. Raises TypeError unless it is a policy of this module."""
    if isinstance(value, type) or not isinstance(value, Policy):
        allowed = "everything(), nothing(), dots(), names(), names_but(), offload_dots(), where() or any_of()"
        raise TypeError(f"{where}: found {value!r:.100}, allowed: {allowed}")
    return value
