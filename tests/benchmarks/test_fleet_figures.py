"""What the fleet benchmark counts: the operator's requests alone, each once, by kind."""

from __future__ import annotations

import json
import math
from pathlib import Path

from benchmarks import fleet_figures as figures
from benchmarks.fleet_cluster import OPERATOR_USER
from holdfast_contract import keys


def entry(user: str, verb: str, resource: str, subresource: str = "", name: str = "job-1") -> str:
    ref = {"resource": resource, "subresource": subresource, "name": name}
    at = "2026-01-01T00:00:01.500000Z"
    return json.dumps({"user": {"username": user}, "verb": verb, "objectRef": ref, "requestReceivedTimestamp": at})


def test_only_complete_new_lines_of_the_operator_count(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = [
        entry(OPERATOR_USER, "update", keys.PLURAL, "status"),
        entry("system:admin", "update", keys.PLURAL, "status"),
        entry(OPERATOR_USER, "create", "events", name=""),
    ]
    half = entry(OPERATOR_USER, "get", "pods")
    path.write_text("\n".join([*lines, half[:20]]))
    log = figures.AuditLog(path)
    calls = log.new_calls()
    assert figures.by_kind(calls) == {f"update {keys.PLURAL}/status": 1, "create events": 1}
    assert [figures.is_status_write(c) for c in calls] == [True, False]
    assert [figures.is_event_write(c) for c in calls] == [False, True]
    assert calls[0].at % 60 == 1.5
    path.write_text("\n".join([*lines, half, ""]))
    assert [c.resource for c in log.new_calls()] == ["pods"]
    assert log.new_calls() == []


def test_a_percentile_is_one_of_the_values() -> None:
    assert figures.percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert figures.percentile([1.0, 2.0], 0.99) == 2.0
    assert math.isnan(figures.percentile([], 0.99))
