"""What all models of the spec have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class FieldError(ValueError):
    """A value that a rule over the spec refuses. Names the dotted field, what was found and what is allowed."""

    def __init__(self, field: str, found: object, allowed: str) -> None:
        self.field, self.found, self.allowed = field, found, allowed
        super().__init__(f"{field}: found {found!r:.200}, allowed: {allowed}")


class SpecModel(BaseModel):
    """Base of all spec models: camelCase outside, snake_case inside, immutable, and nothing unknown is let through."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )
