"""Converts pydantic models to the structural schema that the API server requires.

It differs from the JSON Schema that pydantic writes: references are inlined; titles and closed objects are dropped,
because the server prunes or refuses unknown fields by itself; an optional field is absent instead of null; a constant
is an enumeration of one value; integers have 64 bits; lists of named items are maps by that name; and an object whose
fields have defaults has a default itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from holdfast_contract.crd_rules import RULES

Schema = dict[str, Any]

LIST_MAP_KEYS: Final[Mapping[str, str]] = {
    "spec.preemption.notices": "name",
    "spec.template.spec.containers": "name",
    "spec.template.spec.initContainers": "name",
    "spec.template.spec.volumes": "name",
    "status.conditions": "type",
}
"""Lists whose items are identified by one field: the server refuses duplicates of it and merges by it."""

SETS: Final = frozenset({"atSteps", "steps", "finite"})
"""Lists, by the last part of their path, in which the server refuses duplicates."""

WITHOUT_DEFAULT: Final = frozenset({"spec.checkpoint.every"})
"""Fields whose default the server must not write into the object. The default would remain beside an alternative that
the user applies later, and only one of them may be set."""

_KEPT_KEYWORDS: Final = (
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
)
_DROPPED_KEYWORDS: Final = frozenset(
    {"$defs", "title", "description", "default", "properties", "required", "items", "additionalProperties"}
)


class SchemaError(TypeError):
    """A model has something that a structural schema cannot express, or leaves something without a limit."""


def structural_schema(model: type[BaseModel], path: str) -> Schema:
    """The structural schema of ``model`` with its CEL rules.

    Args:
        model: The pydantic model.
        path: Where the model stands in the object, such as ``spec``.

    Raises:
        SchemaError: names the field, and what about it cannot be expressed or is missing.
    """
    source = model.model_json_schema(by_alias=True)
    return _Converter(source.get("$defs", {})).convert(source, path)


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def convert(self, source: Schema, path: str) -> Schema:
        source = self._resolve(source, path)
        if "const" in source:
            source["enum"] = [source.pop("const")]
        unknown = set(source) - set(_KEPT_KEYWORDS) - _DROPPED_KEYWORDS
        if unknown or "type" not in source:
            raise SchemaError(f"{path}: found {sorted(unknown) or 'no type'}, allowed: {', '.join(_KEPT_KEYWORDS)}")
        schema: Schema = {}
        if "description" in source:
            schema["description"] = " ".join(source["description"].split())
        schema |= {keyword: source[keyword] for keyword in _KEPT_KEYWORDS if keyword in source}
        if source["type"] == "integer":
            schema["format"] = "int64"
        if source["type"] == "object":
            schema |= self._object(source, path)
        if source["type"] == "array":
            schema |= self._array(source, path)
        _check_limits(schema, path)
        if rules := RULES.get(path):
            schema["x-kubernetes-validations"] = [rule.to_manifest() for rule in rules]
        return schema

    def _resolve(self, source: Schema, path: str) -> Schema:
        """Follow a reference and drop the null of an optional field. The field's own keywords take precedence."""
        own = {k: v for k, v in source.items() if k not in {"$ref", "anyOf"}}
        if "$ref" in source:
            return self._resolve(self._definitions[source["$ref"].rpartition("/")[2]], path) | own
        if "anyOf" in source:
            options = [o for o in source["anyOf"] if o.get("type") != "null"]
            if len(options) != 1:
                raise SchemaError(f"{path}: found {len(options)} alternative types, allowed: one, and absence")
            return self._resolve(options[0], path) | own
        return dict(source)

    def _object(self, source: Schema, path: str) -> Schema:
        values = source.get("additionalProperties", False)
        if "properties" not in source:
            return {"additionalProperties": self.convert(values, f"{path}[]")}
        schema: Schema = {}
        if required := source.get("required"):
            schema["required"] = required
        schema["properties"] = {
            name: self._property(field, f"{path}.{name}") for name, field in source["properties"].items()
        }
        if values is True:
            schema["x-kubernetes-preserve-unknown-fields"] = True
        return schema

    def _property(self, source: Schema, path: str) -> Schema:
        schema = self.convert(source, path)
        if "description" not in schema:
            raise SchemaError(f"{path}: found no description, allowed: a docstring below the attribute")
        if path.startswith("status.") or path in WITHOUT_DEFAULT:
            return schema
        default = source.get("default")
        if default is not None and default != []:
            schema["default"] = default
        elif any("default" in p for p in schema.get("properties", {}).values()) and not schema.get("required"):
            schema["default"] = {}
        return schema

    def _array(self, source: Schema, path: str) -> Schema:
        schema: Schema = {"items": self.convert(source["items"], f"{path}[]")}
        if key := LIST_MAP_KEYS.get(path):
            schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        else:
            schema["x-kubernetes-list-type"] = "set" if path.rpartition(".")[2] in SETS else "atomic"
        return schema


def _check_limits(schema: Schema, path: str) -> None:
    """Everything that can grow must have a maximum, from which the server estimates the cost of rules."""
    bounded_string = "maxLength" in schema or "enum" in schema or "format" in schema
    if schema["type"] == "string" and not bounded_string:
        raise SchemaError(f"{path}: found a string without maxLength")
    if schema["type"] == "array" and "maxItems" not in schema:
        raise SchemaError(f"{path}: found a list without maxItems")
    if any(schema.get(limit, 0) % 1 for limit in ("minimum", "maximum")):
        raise SchemaError(f"{path}: found a limit with a fraction, which the server drops where the value has none")
    if "additionalProperties" in schema and "maxProperties" not in schema:
        raise SchemaError(f"{path}: found a map without maxProperties")
