"""The CEL rules of ``spec.checkpoint``: which fields exclude, require or bound each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from holdfast_contract.api_checkpoint import (
    EXACTLY_ONE_INTERVAL,
    EXACTLY_ONE_SAVE,
    EXACTLY_ONE_TERM,
    KEEP_RULES,
    RISING,
    SAVE_RULES,
    SOME_KEEP,
)
from holdfast_contract.cel import Rule, at_least_one, exactly_one, given, needs

_RISING: Final = Rule(holds="self.isSorted()", found="self", allowed=RISING)  # the schema already refuses duplicates

_ADAPTIVE: Final = Rule(
    holds="self.minSeconds <= self.maxSeconds",
    found="'%s above maxSeconds %s'.format([self.minSeconds, self.maxSeconds])",
    allowed="minSeconds at most maxSeconds",
    field=".minSeconds",
)

_UNSTABLE: Final = Rule(
    holds="self.minSeconds <= self.baseSeconds && self.baseSeconds <= self.maxSeconds",
    found="'%s, %s, %s'.format([self.minSeconds, self.baseSeconds, self.maxSeconds])",
    allowed="minSeconds, baseSeconds, maxSeconds in rising order",
    field=".minSeconds",
)

_BEST: Final = (needs("best", "metric"), needs("metric", "best"), needs("mode", "metric"))

_OTHERS_OF_ALL: Final = given(*KEEP_RULES, "metric", "mode", "anyOf", "allOf")
_ALL_ALONE: Final = Rule(
    holds=f"!has(self.all) || {_OTHERS_OF_ALL}.size() == 0",
    found=f"'all with %s'.format([{_OTHERS_OF_ALL}])",
    allowed="all alone, for it deletes nothing",
    field=".all",
)


def _saves(path: str, exclusive: Rule) -> Iterator[tuple[str, tuple[Rule, ...]]]:
    """The CEL rules of one place in the spec that holds a rule for saves."""
    yield path, (exclusive,)
    yield f"{path}.adaptive", (_ADAPTIVE,)
    yield f"{path}.whenUnstable", (_UNSTABLE,)
    yield f"{path}.atSteps", (_RISING,)


def _kept(path: str, *rules: Rule) -> Iterator[tuple[str, tuple[Rule, ...]]]:
    """The CEL rules of one place in the spec that holds a rule for what to keep."""
    yield path, (*_BEST, *rules)
    yield f"{path}.steps", (_RISING,)


def _all() -> Iterator[tuple[str, tuple[Rule, ...]]]:
    every, keep = "spec.checkpoint.every", "spec.checkpoint.keep"
    one = exactly_one(*SAVE_RULES, allowed=EXACTLY_ONE_SAVE)
    yield from _saves(every, exactly_one(*SAVE_RULES, "allOf", "anyOf", "onlyAtEnd", allowed=EXACTLY_ONE_INTERVAL))
    yield from _saves(f"{every}.anyOf[]", exactly_one(*SAVE_RULES, "allOf", allowed=EXACTLY_ONE_TERM))
    some = at_least_one(*KEEP_RULES, allowed=SOME_KEEP)
    yield from _kept(keep, _ALL_ALONE)
    yield from _kept(f"{keep}.anyOf[]", at_least_one(*KEEP_RULES, "allOf", allowed=f"{SOME_KEEP}, allOf"))
    for inner in ("allOf[]", "anyOf[].allOf[]"):
        yield from _saves(f"{every}.{inner}", one)
        yield from _kept(f"{keep}.{inner}", some)


CHECKPOINT_RULES: Final[Mapping[str, tuple[Rule, ...]]] = dict(_all())
"""Part of ``holdfast_contract.crd_rules.RULES``."""
