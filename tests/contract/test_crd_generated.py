"""The committed CRD is what the models generate, and the schema keeps its own promises."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, Field

from holdfast_contract import crd, keys
from holdfast_contract.crd_rules import RULES
from holdfast_contract.crd_schema import SchemaError, structural_schema

ROOT = Path(__file__).parents[2]
SCHEMA = crd.custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every place in the schema with its path as in RULES."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from fields(child, f"{path}.{name}".lstrip("."))
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from fields(schema[keyword], f"{path}[]")


@pytest.mark.parametrize("target", crd.TARGETS, ids=str)
def test_committed_copy_is_current(target: Path) -> None:
    assert (ROOT / target).read_text() == crd.render(), "run: python -m holdfast_contract.crd"


def test_check_tells_a_stale_copy_and_a_run_repairs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert crd.main([str(tmp_path), "--check"]) == 1
    complaint = capsys.readouterr().err
    assert [target for target in crd.TARGETS if str(target) not in complaint] == []
    assert crd.main([str(tmp_path)]) == 0
    assert crd.main([str(tmp_path), "--check"]) == 0
    first, second = (tmp_path / target for target in crd.TARGETS)
    assert filecmp.cmp(first, second, shallow=False)
    second.write_text(second.read_text().replace("minimum: 1", "minimum: 0", 1))
    assert crd.main([str(tmp_path), "--check"]) == 1
    assert str(crd.TARGETS[1]) in capsys.readouterr().err


def test_yaml_reads_back_as_the_crd() -> None:
    assert yaml.safe_load(crd.render()) == crd.custom_resource_definition()


def test_every_field_is_described() -> None:
    undescribed = [
        path
        for path, schema in fields(SCHEMA)
        if "description" not in schema and path not in {"", "metadata"} and not path.endswith("[]")
    ]
    assert undescribed == []


def test_every_rule_stands_at_a_field_that_exists() -> None:
    placed = {path for path, schema in fields(SCHEMA) if "x-kubernetes-validations" in schema}
    assert placed == set(RULES)


def test_unknown_fields_survive_in_pods_and_nowhere_else() -> None:
    preserving = {path for path, schema in fields(SCHEMA) if schema.get("x-kubernetes-preserve-unknown-fields")}
    containers = [f"spec.template.spec.{kind}[]" for kind in ("containers", "initContainers")]
    expected = {"spec.template.spec", "spec.template.spec.volumes[]", *containers}
    expected |= {f"{c}.{part}[]" for c in containers for part in ("env", "volumeMounts")}
    assert preserving == expected


def test_an_alternative_has_no_default_that_would_stay_beside_the_other() -> None:
    every = SCHEMA["properties"]["spec"]["properties"]["checkpoint"]["properties"]["every"]
    assert "default" not in every


def test_columns_point_at_fields_of_the_schema() -> None:
    known = {f".{path}" for path, _ in fields(SCHEMA)} | {".metadata.creationTimestamp"}
    assert {path for _, _, path, _ in crd.COLUMNS + crd.WIDE_COLUMNS} <= known


def test_names_come_from_the_contract() -> None:
    definition = crd.custom_resource_definition()
    assert definition["metadata"]["name"] == keys.CRD_NAME
    assert definition["spec"]["names"]["plural"] == keys.PLURAL


class _Unbounded(BaseModel):
    text: str = Field(description="x")


class _Undescribed(BaseModel):
    number: int


class _Alternatives(BaseModel):
    either: int | bool = Field(description="x")


class _EndlessMap(BaseModel):
    table: dict[str, Annotated[str, Field(max_length=3)]] = Field(description="x")


class _FractionalLimit(BaseModel):
    ratio: Annotated[float, Field(ge=0.5)] = Field(description="x")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_Unbounded, r"spec\.text: found a string without maxLength"),
        (_Undescribed, r"spec\.number: found no description"),
        (_Alternatives, r"spec\.either: found 2 alternative types"),
        (_FractionalLimit, r"spec\.ratio: found a limit with a fraction"),
        (_EndlessMap, r"spec\.table: found a map without maxProperties"),
    ],
)
def test_what_a_schema_cannot_hold_is_refused_by_field(model: type[BaseModel], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        structural_schema(model, "spec")
