"""What of a report matters at once, and what the outcome of a save means."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from holdfast_contract.manifest import CheckpointRef, Rejection
from holdfast_contract.reasons import SaveOutcome
from holdfast_contract.sync import Inspection, Progress, Report, SaveReport, TrainerExit, TrainerPhase

PENDING = SaveReport("1-1", SaveOutcome.PENDING, forecast_seconds=7.0)
REPORT = Report(
    1, 2, "tag", TrainerPhase.RUNNING, progress=Progress(5), saves=(PENDING,), buckets={"idle": 1.0},
    terminating_seconds_left=20.0,
)  # fmt: skip

FLOWING: dict[str, Any] = {
    "progress": Progress(6, step_seconds=0.5, metrics={"loss": 1.0}),
    "buckets": {"idle": 1.0, "productive": 2.0},
    "terminating_seconds_left": 19.0,
    "saves": (replace(PENDING, forecast_seconds=6.5),),
}
DECIDING: dict[str, Any] = {
    "protocol": 2,
    "attempt": 3,
    "obeys": "another tag",
    "phase": TrainerPhase.EXITED,
    "exit": TrainerExit(2, 1),
    "newest": CheckpointRef(2, 5),
    "saves": (replace(PENDING, outcome=SaveOutcome.COMMITTED),),
    "restored": CheckpointRef(1, 4),
    "rejected": (Rejection(1, 3, "damaged"),),
    "inspection": Inspection(1),
    "terminating_seconds_left": None,
    "storage_error": "disk full",
}


@pytest.mark.parametrize("field", FLOWING)
def test_what_flows_does_not_change_a_reports_meaning(field: str) -> None:
    assert replace(REPORT, **{field: FLOWING[field]}).meaning() == REPORT.meaning()


@pytest.mark.parametrize("field", DECIDING)
def test_what_decisions_rest_on_changes_a_reports_meaning(field: str) -> None:
    assert replace(REPORT, **{field: DECIDING[field]}).meaning() != REPORT.meaning()


def test_every_field_of_a_report_either_flows_or_decides() -> None:
    assert {field.name for field in fields(Report)} == FLOWING.keys() | DECIDING.keys()


def test_a_save_is_final_unless_pending_and_saved_only_with_a_checkpoint() -> None:
    assert {outcome for outcome in SaveOutcome if not outcome.is_final} == {SaveOutcome.PENDING}
    assert {outcome for outcome in SaveOutcome if outcome.is_saved} == {SaveOutcome.COMMITTED, SaveOutcome.FRESH}
