"""The TrainingJob API, version v1alpha1: models of a whole object, and re-exports of its parts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from holdfast_contract.api_base import FieldError
from holdfast_contract.api_checkpoint import (
    AdaptiveSpec,
    CheckpointSpec,
    EverySpec,
    HealthySpec,
    KeepRuleSpec,
    KeepSpec,
    KeepTermSpec,
    SaveRuleSpec,
    SaveTermSpec,
    WhenUnstableSpec,
)
from holdfast_contract.api_spec import (
    ConditionMatch,
    HangSpec,
    LabelMatch,
    NoticeMatcher,
    PreemptionSpec,
    RecoverySpec,
    Strategy,
    TaintMatch,
    TrainingJobSpec,
)
from holdfast_contract.api_status import (
    AccountedPod,
    AttemptEnd,
    CheckpointPoint,
    CheckpointStatus,
    ConditionStatus,
    FailureStatus,
    Goodput,
    NoticeStatus,
    PreemptionStatus,
    ProgressStatus,
    RejectedPoint,
    SaveStatus,
    Setback,
    StandingNotice,
    TrainingJobStatus,
    Transition,
    WorkersStatus,
)
from holdfast_contract.api_template import Container, PodTemplate

MAX_NAME: Final = 63 - len("-4095-999999")
"""Longest name of a job: its pods are named `<job>-<index>-<attempt>` and must fit into a host name."""


class ObjectMeta(BaseModel):
    """The part of an object's metadata that the operator reads."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
    )

    name: Annotated[str, Field(min_length=1, max_length=253)]
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class TrainingJob(BaseModel):
    """A JAX training job that keeps moving while nodes come and go."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    api_version: Literal["holdfast.dev/v1alpha1"] = "holdfast.dev/v1alpha1"
    kind: Literal["TrainingJob"] = "TrainingJob"
    metadata: ObjectMeta
    spec: TrainingJobSpec
    status: TrainingJobStatus = Field(default_factory=TrainingJobStatus)

    @property
    def run(self) -> str:
        """Folder of the training run under the checkpoint path."""
        return self.spec.checkpoint.run or self.metadata.uid

    def to_manifest(self) -> dict[str, Any]:
        """The object as JSON-ready dicts and lists, without absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @model_validator(mode="after")
    def _name_fits(self) -> Self:
        name = self.metadata.name
        if len(name) > MAX_NAME or "." in name:
            raise FieldError(
                "metadata.name", name, f"at most {MAX_NAME} characters and no dot: pods are named after it"
            )
        return self


__all__ = [
    "MAX_NAME",
    "AccountedPod",
    "AdaptiveSpec",
    "AttemptEnd",
    "CheckpointPoint",
    "CheckpointSpec",
    "CheckpointStatus",
    "ConditionMatch",
    "ConditionStatus",
    "Container",
    "EverySpec",
    "FailureStatus",
    "FieldError",
    "Goodput",
    "HangSpec",
    "HealthySpec",
    "KeepRuleSpec",
    "KeepSpec",
    "KeepTermSpec",
    "LabelMatch",
    "NoticeMatcher",
    "NoticeStatus",
    "ObjectMeta",
    "PodTemplate",
    "PreemptionSpec",
    "PreemptionStatus",
    "ProgressStatus",
    "RecoverySpec",
    "RejectedPoint",
    "SaveRuleSpec",
    "SaveStatus",
    "SaveTermSpec",
    "Setback",
    "StandingNotice",
    "Strategy",
    "TaintMatch",
    "TrainingJob",
    "TrainingJobSpec",
    "TrainingJobStatus",
    "Transition",
    "WhenUnstableSpec",
    "WorkersStatus",
]
