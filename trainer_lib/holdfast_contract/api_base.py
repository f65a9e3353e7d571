"""The base of all models of the spec."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MAX_SECONDS: Final = 366 * 24 * 3600
MAX_STEPS: Final = 1_000_000_000_000

Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS)]
Steps = Annotated[int, Field(ge=1, le=MAX_STEPS)]


class FieldError(ValueError):
    """A value that breaks a rule of the spec. Names the dotted field, what was found and what is allowed."""

    def __init__(self, field: str, found: object, allowed: str) -> None:
        """Build the message.

        Args:
            field: Path of the field, with dots, relative to the model that refuses it.
            found: The value; the message shows at most 200 characters of it.
            allowed: What is allowed instead, in words.
        """
        self.field, self.found, self.allowed = field, found, allowed
        super().__init__(f"{field}: found {found!r:.200}, allowed: {allowed}")


class SpecModel(BaseModel):
    """Base of all spec models: camelCase outside, snake_case inside, immutable; unknown fields are refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )


def given(model: BaseModel) -> list[str]:
    """Names of the fields that are set, in camelCase as users write them."""
    return [to_camel(name) for name in type(model).model_fields if getattr(model, name) is not None]
