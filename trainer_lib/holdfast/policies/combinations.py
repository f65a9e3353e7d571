"""``any_of`` and ``all_of``, for save rules and for keep rules alike."""

from __future__ import annotations

from typing import Any, overload

from holdfast.policies.keep_rules import KeepRule, KeptByAll, KeptByAny
from holdfast.policies.save_rules import SavePolicy, SaveWhenAll, SaveWhenAny


@overload
def any_of(*rules: KeepRule) -> KeptByAny: ...
@overload
def any_of(*rules: SavePolicy) -> SaveWhenAny: ...
def any_of(*rules: Any) -> Any:
    """Save when at least one of the rules is met; or keep what at least one of them keeps.

    Save rules over steps alone stay deterministic: every rank still decides those by itself.

    Raises:
        ValueError: no rule is given.
        TypeError: save rules and keep rules are mixed.
    """
    return KeptByAny(rules) if _are_keep_rules("any_of", rules) else SaveWhenAny(rules)


@overload
def all_of(*rules: KeepRule) -> KeptByAll: ...
@overload
def all_of(*rules: SavePolicy) -> SaveWhenAll: ...
def all_of(*rules: Any) -> Any:
    """Save when all of the rules are met; or keep only what all of them keep.

    Raises:
        ValueError: no rule is given.
        TypeError: save rules and keep rules are mixed.
    """
    return KeptByAll(rules) if _are_keep_rules("all_of", rules) else SaveWhenAll(rules)


def _are_keep_rules(name: str, rules: tuple[Any, ...]) -> bool:
    if not rules:
        raise ValueError(f"{name}: found no rule, allowed: one or more")
    kept = [isinstance(rule, KeepRule) for rule in rules]
    if any(kept) and not all(kept):
        raise TypeError(f"{name}: found save rules and keep rules, allowed: rules of one kind")
    return all(kept)
