"""The README and the pages below docs/, and the code blocks in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> dict[int, str]:
    """The blocks of a language, by the line that they begin at."""
    text = page.read_text()
    return {text[: found.start()].count("\n") + 1: found[2] for found in _BLOCK.finditer(text) if found[1] == language}


def every_block(language: str) -> list[object]:
    """The blocks of all pages as parameters of a test."""
    return [
        pytest.param(source, id=f"{page.name}:{line}")
        for page in PAGES
        for line, source in blocks(page, language).items()
    ]
