"""The rules over a TrainingJob that a schema cannot say: CEL expressions, evaluated by the API server at the door.

The models in ``holdfast_contract.api`` repeat every rule that looks at one object alone; rules that compare with the
object before (``oldSelf``) exist here only. Messages have one form, ``found X, allowed: Y``; the server puts the field
in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from holdfast_contract import keys
from holdfast_contract.api import MAX_NAME
from holdfast_contract.api_spec import EXACTLY_ONE_INTERVAL, EXACTLY_ONE_MATCHER
from holdfast_contract.api_template import RESERVED_VOLUMES


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


def _quoted(expression: str) -> str:
    return f"'\"%s\"'.format([{expression}])"


def _optional(owner: str, name: str) -> str:
    """CEL for the value of an optional field, as text."""
    return f"(has({owner}.{name}) ? {_quoted(f'{owner}.{name}')} : 'nothing')"


def _given(*names: str) -> str:
    """CEL for the list of those optional fields of self that are set."""
    return "(" + " + ".join(f"(has(self.{name}) ? ['{name}'] : [])" for name in names) + ")"


def _exactly_one(*names: str, allowed: str) -> Rule:
    given = _given(*names)
    return Rule(holds=f"{given}.size() == 1", found=given, allowed=allowed)


def _needs(name: str, other: str) -> Rule:
    return Rule(
        holds=f"!has(self.{name}) || has(self.{other})",
        found=f"'%s without {other}'.format([self.{name}])",
        allowed=f"{name} only together with {other}",
        field=f".{name}",
    )


def _same(now: str, before: str) -> str:
    """CEL: an optional field is what it was."""
    return f"has({now}) == has({before}) && (!has({now}) || {now} == {before})"


def _frozen_while_running(field: str) -> Rule:
    now, before = f"self.{field}", f"oldSelf.{field}"
    return Rule(
        holds=f"self.suspend || oldSelf.suspend || ({_same(now, before)})",
        found="'a change while spec.suspend is false'",
        allowed=f"a change of {field} while spec.suspend is true: running pods carry the value",
        field=f".{field}",
    )


def _no_reserved_key() -> Rule:
    prefix = f"{keys.API_GROUP}/"
    return Rule(
        holds=f"self.all(key, !key.startsWith('{prefix}'))",
        found=f"self.filter(key, key.startsWith('{prefix}'))",
        allowed=f"keys that do not begin with {prefix}",
    )


_NAME = (
    Rule(
        holds=f"self.metadata.name.size() <= {MAX_NAME}",
        found="'\"%s\" with %s characters'.format([self.metadata.name, self.metadata.name.size()])",
        allowed=f"metadata.name of at most {MAX_NAME} characters: pods are named <name>-<index>-<attempt>",
    ),
    Rule(
        holds="!self.metadata.name.contains('.')",
        found=_quoted("self.metadata.name"),
        allowed="metadata.name without a dot: pods, and so host names, are named after it",
    ),
)


def _with_slash(expression: str) -> str:
    return f"({expression}.endsWith('/') ? {expression} : {expression} + '/')"


_MOUNT_COVERS_PATH = f"{_with_slash('self.checkpoint.path')}.startsWith({_with_slash('m.mountPath')})"

_SPEC = (
    Rule(
        holds=(
            "!self.template.spec.containers.exists(c, c.name == 'trainer') || self.template.spec.containers.exists(c, "
            f"c.name == 'trainer' && has(c.volumeMounts) && c.volumeMounts.exists(m, {_MOUNT_COVERS_PATH}))"
        ),
        found=_quoted("self.checkpoint.path"),
        allowed="a directory under one of the volumeMounts of container trainer; others end with the pod",
        field=".checkpoint.path",
    ),
    _frozen_while_running("checkpoint.every"),
    _frozen_while_running("checkpoint.keep"),
    _frozen_while_running("hang"),
    _frozen_while_running("template"),  # equality sees the fields that the schema does not model, too
)

_PATH = (
    Rule(
        holds="!self.contains('://')",
        found=_quoted("self"),
        allowed="an absolute directory that the template mounts; URIs are not supported yet",
    ),
    Rule(
        holds="self.startsWith('/') || self.contains('://')",
        found=_quoted("self"),
        allowed="an absolute directory, beginning with /",
    ),
    Rule(
        holds=r"self.contains('://') || (self != '/' && !self.matches('/([.]{0,2}/|[.]{1,2}$)'))",
        found=_quoted("self"),
        allowed="a directory without empty, . and .. segments",
    ),
    Rule(
        holds="self == oldSelf",
        found=_quoted("self"),
        allowed="the value that it had, for checkpoints are there: path cannot be changed",
    ),
)

_CONTAINER = (
    Rule(
        holds=f"self.name != '{keys.TRAINER_CONTAINER}' || (has(self.command) && self.command.size() > 0)",
        found="(has(self.command) ? '[]' : 'nothing')",
        allowed=f"command of container {keys.TRAINER_CONTAINER} with at least one element: the agent starts it",
        field=".command",
    ),
)

_ENV_NAME = (
    Rule(
        holds=f"!self.startsWith('{keys.ENV_PREFIX}')",
        found=_quoted("self"),
        allowed=f"a name that does not begin with {keys.ENV_PREFIX}",
    ),
)

_POD_SPEC = (
    Rule(
        holds="!has(self.nodeName)",
        found=_optional("self", "nodeName"),
        allowed="no nodeName, which binds all workers to one node for ever: use nodeSelector or affinity",
        field=".nodeName",
    ),
)

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "": _NAME,
    "spec": _SPEC,
    "spec.replicas": (
        Rule(
            holds="self == oldSelf",
            found="self",
            allowed="the value that it had: replicas cannot be changed",
        ),
    ),
    "spec.checkpoint": (
        Rule(
            holds=_same("self.run", "oldSelf.run"),
            found=_optional("self", "run"),
            allowed="the value that it had, for checkpoints are there: run cannot be changed",
            field=".run",
        ),
    ),
    "spec.checkpoint.path": _PATH,
    "spec.checkpoint.every": (_exactly_one("seconds", "steps", "adaptive", allowed=EXACTLY_ONE_INTERVAL),),
    "spec.checkpoint.every.adaptive": (
        Rule(
            holds="self.minSeconds <= self.maxSeconds",
            found="'%s above maxSeconds %s'.format([self.minSeconds, self.maxSeconds])",
            allowed="minSeconds at most maxSeconds",
            field=".minSeconds",
        ),
    ),
    "spec.checkpoint.keep": (
        _needs("best", "metric"),
        _needs("metric", "best"),
        _needs("mode", "metric"),
    ),
    "spec.preemption.notices[]": (
        _exactly_one("taint", "label", "annotation", "condition", allowed=EXACTLY_ONE_MATCHER),
    ),
    "spec.template.metadata.labels": (_no_reserved_key(),),
    "spec.template.metadata.annotations": (_no_reserved_key(),),
    "spec.template.spec": _POD_SPEC,
    "spec.template.spec.containers": (
        Rule(
            holds=f"self.exists(c, c.name == '{keys.TRAINER_CONTAINER}')",
            found="self.map(c, c.name)",
            allowed=f"a container named {keys.TRAINER_CONTAINER} among them",
        ),
    ),
    "spec.template.spec.containers[]": _CONTAINER,
    "spec.template.spec.containers[].env[].name": _ENV_NAME,
    "spec.template.spec.initContainers[].env[].name": _ENV_NAME,
    "spec.template.spec.volumes[].name": (
        Rule(
            holds=f"!(self in {list(RESERVED_VOLUMES)})",
            found=_quoted("self"),
            allowed=f"a name other than {' and '.join(RESERVED_VOLUMES)}",
        ),
    ),
}
"""Path of a field in the schema, ``[]`` for the items of a list, to the rules that stand there."""
