"""How a CEL rule is written, and the forms that many rules have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One CEL rule. ``found`` is a CEL expression of any type; ``field`` is relative to where the rule stands."""

    holds: str
    found: str
    allowed: str
    field: str = ""

    def to_manifest(self) -> dict[str, Any]:
        """The rule as an entry of ``x-kubernetes-validations``.

        ``message`` is what the server falls back to when the message expression fails or gets too long. The expression
        uses ``format``, since the server takes the length of ``string(number)`` for unbounded when it estimates costs.
        """
        text = _literal(f"found %s, allowed: {self.allowed}")
        manifest = {
            "rule": self.holds,
            "message": f"allowed: {self.allowed}",
            "messageExpression": f"{text}.format([{self.found}])",
        }
        return manifest | ({"fieldPath": self.field} if self.field else {})


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quoted(expression: str) -> str:
    """CEL for a value in quotes, as text."""
    return f"'\"%s\"'.format([{expression}])"


def optional(owner: str, name: str) -> str:
    """CEL for the value of an optional field, as text."""
    return f"(has({owner}.{name}) ? {quoted(f'{owner}.{name}')} : 'nothing')"


def given(*names: str) -> str:
    """CEL for the list of those optional fields of self that are set."""
    return "(" + " + ".join(f"(has(self.{name}) ? ['{name}'] : [])" for name in names) + ")"


def exactly_one(*names: str, allowed: str) -> Rule:
    """One of those fields of self, and no other of them."""
    found = given(*names)
    return Rule(holds=f"{found}.size() == 1", found=found, allowed=allowed)


def at_least_one(*names: str, allowed: str) -> Rule:
    """One or more of those fields of self."""
    found = given(*names)
    return Rule(holds=f"{found}.size() > 0", found=found, allowed=allowed)


def needs(name: str, other: str) -> Rule:
    """A field of self that means nothing without another."""
    return Rule(
        holds=f"!has(self.{name}) || has(self.{other})",
        found=f"'%s without {other}'.format([self.{name}])",
        allowed=f"{name} only together with {other}",
        field=f".{name}",
    )
