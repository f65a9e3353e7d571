"""The type of an API object as its JSON says it."""

from typing import Any

Json = dict[str, Any]
