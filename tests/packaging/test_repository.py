"""Files that only a hosting site or pre-commit reads: well-formed, and in step with the project's own commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
FORMS: Final = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
FIELDS: Final = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_the_hooks_are_the_checks_of_make_lint_with_the_locked_tools() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    hooks = {hook["entry"].replace(" --force-exclude", "") for hook in local["hooks"]}
    recipe = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    checks = re.findall(r"^\t@(\$\((?:VENV|PY)\).*)$", recipe, flags=re.MULTILINE)
    commands = {check.replace("$(VENV)", ".venv").replace("$(PY)", ".venv/bin/python") for check in checks}
    assert hooks == {re.sub(r"( --check)? \.$", "", command) for command in commands}


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "config.yml"], ids=lambda form: form.name)
def test_an_issue_form_asks_in_fields_of_its_own(form: Path) -> None:
    content: dict[str, Any] = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= content.keys()
    assert {field["type"] for field in content["body"]} <= FIELDS
    asked = [field for field in content["body"] if field["type"] != "markdown"]
    assert all(field["attributes"]["label"] for field in asked)
    assert len({field["id"] for field in asked}) == len(asked)
    assert any(field.get("validations", {}).get("required") for field in asked)
