"""CEL rules, and the forms that many of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One CEL rule.

    ``holds`` is the CEL expression that must be true. ``found`` is a CEL expression of any type for the message,
    ``allowed`` is text. ``field`` is the path of the field that the message names, relative to where the rule stands.
    """

    holds: str
    found: str
    allowed: str
    field: str = ""

    def to_manifest(self) -> dict[str, Any]:
        """The rule as an entry of ``x-kubernetes-validations``.

        The server falls back to ``message`` when the message expression fails or its result is too long. The expression
        uses ``format``, because the server's cost estimate takes the length of ``string(number)`` to be unbounded.
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
    """CEL for the text of a value in quotes."""
    return f"'\"%s\"'.format([{expression}])"


def optional(owner: str, name: str) -> str:
    """CEL for the text of an optional field's value; 'nothing' if it is not set."""
    return f"(has({owner}.{name}) ? {quoted(f'{owner}.{name}')} : 'nothing')"


def given(*names: str) -> str:
    """CEL for the list of those optional fields of self that are set."""
    return "(" + " + ".join(f"(has(self.{name}) ? ['{name}'] : [])" for name in names) + ")"


def exactly_one(*names: str, allowed: str) -> Rule:
    """Exactly one of these fields of self is set. ``allowed`` says so in the message."""
    found = given(*names)
    return Rule(holds=f"{found}.size() == 1", found=found, allowed=allowed)


def at_least_one(*names: str, allowed: str) -> Rule:
    """At least one of these fields of self is set. ``allowed`` says so in the message."""
    found = given(*names)
    return Rule(holds=f"{found}.size() > 0", found=found, allowed=allowed)


def needs(name: str, other: str) -> Rule:
    """Field ``name`` of self may be set only if ``other`` is."""
    return Rule(
        holds=f"!has(self.{name}) || has(self.{other})",
        found=f"'%s without {other}'.format([self.{name}])",
        allowed=f"{name} only together with {other}",
        field=f".{name}",
    )
