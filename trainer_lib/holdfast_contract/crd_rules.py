"""The rules of a TrainingJob that a schema cannot express: CEL expressions, evaluated by the API server on admission.

The models in ``holdfast_contract.api`` repeat every rule that needs one object alone. Rules that compare with the
previous object (``oldSelf``) exist here only. Messages have one form, ``found X, allowed: Y``; the server prefixes the
field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast_contract import keys
from holdfast_contract.api import MAX_NAME
from holdfast_contract.api_spec import EXACTLY_ONE_MATCHER
from holdfast_contract.api_template import RESERVED_VOLUMES
from holdfast_contract.cel import Rule, exactly_one, optional, quoted
from holdfast_contract.crd_checkpoint_rules import CHECKPOINT_RULES


def _same(now: str, before: str) -> str:
    """CEL: an optional field has not changed."""
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
        found=quoted("self.metadata.name"),
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
        found=quoted("self.checkpoint.path"),
        allowed="a directory under one of the volumeMounts of container trainer; other directories end with the pod",
        field=".checkpoint.path",
    ),
    _frozen_while_running("checkpoint.every"),
    _frozen_while_running("checkpoint.keep"),
    _frozen_while_running("checkpoint.healthy"),
    _frozen_while_running("hang"),
    _frozen_while_running("template"),  # also compares the fields that the schema does not model
)

_PATH = (
    Rule(
        holds="!self.contains('://')",
        found=quoted("self"),
        allowed="an absolute directory that the template mounts; URIs are not supported yet",
    ),
    Rule(
        holds="self.startsWith('/') || self.contains('://')",
        found=quoted("self"),
        allowed="an absolute directory, beginning with /",
    ),
    Rule(
        holds=r"self.contains('://') || (self != '/' && !self.matches('/([.]{0,2}/|[.]{1,2}$)'))",
        found=quoted("self"),
        allowed="a directory without empty, . and .. segments",
    ),
    Rule(
        holds="self == oldSelf",
        found=quoted("self"),
        allowed="the value that it had: path cannot be changed, because checkpoints are stored there",
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
        found=quoted("self"),
        allowed=f"a name that does not begin with {keys.ENV_PREFIX}",
    ),
)

_POD_SPEC = (
    Rule(
        holds="!has(self.nodeName)",
        found=optional("self", "nodeName"),
        allowed="no nodeName, which would bind all workers to one node: use nodeSelector or affinity",
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
            found=optional("self", "run"),
            allowed="the value that it had: run cannot be changed, because checkpoints are stored there",
            field=".run",
        ),
    ),
    "spec.checkpoint.path": _PATH,
    **CHECKPOINT_RULES,
    "spec.preemption.notices[]": (
        exactly_one("taint", "label", "annotation", "condition", allowed=EXACTLY_ONE_MATCHER),
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
            found=quoted("self"),
            allowed=f"a name other than {' and '.join(RESERVED_VOLUMES)}",
        ),
    ),
}
"""The rules by the path of their field in the schema, with ``[]`` for the items of a list."""
