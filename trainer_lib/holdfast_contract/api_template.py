"""The pod template: the few fields that Holdfast needs to know, and everything else as the user wrote it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from holdfast_contract import keys
from holdfast_contract.api_base import FieldError, SpecModel

DNS_LABEL_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
RESERVED_VOLUMES: Final = (keys.RUNTIME_VOLUME, keys.TOKEN_VOLUME)


class TemplateModel(SpecModel):
    """Base of the parts of the pod template. Fields that Holdfast does not name pass through to the pod unchanged."""

    model_config = ConfigDict(extra="allow")


class EnvVar(TemplateModel):
    """An environment variable."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    """Name of the variable. Names that begin with HOLDFAST_ are reserved."""

    @model_validator(mode="after")
    def _not_reserved(self) -> Self:
        if self.name.startswith(keys.ENV_PREFIX):
            raise FieldError("env[].name", self.name, f"a name that does not begin with {keys.ENV_PREFIX}")
        return self


class VolumeMount(TemplateModel):
    """A volume mounted into a container."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the volume."""
    mount_path: Annotated[str, Field(min_length=1, max_length=1024)]
    """Path at which the container sees it."""


class Container(TemplateModel):
    """A container of a worker pod. Fields not listed here are those of a Pod's container."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN)]
    """Name of the container. The one named trainer runs the training process."""
    command: Annotated[tuple[Annotated[str, Field(max_length=131072)], ...], Field(max_length=256)] = ()
    """Program and arguments. Required for the container named trainer, whose process Holdfast supervises."""
    args: Annotated[tuple[Annotated[str, Field(max_length=131072)], ...], Field(max_length=1024)] = ()
    """Further arguments, appended to command."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=256)] = ()
    """Environment variables of the container."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], Field(max_length=64)] = ()
    """Volumes mounted into the container. One of those of trainer must cover checkpoint.path."""


class Volume(TemplateModel):
    """A volume of a worker pod. Fields not listed here are those of a Pod's volume."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the volume."""

    @model_validator(mode="after")
    def _not_reserved(self) -> Self:
        if self.name in RESERVED_VOLUMES:
            raise FieldError("volumes[].name", self.name, f"a name other than {', '.join(RESERVED_VOLUMES)}")
        return self


class PodSpec(TemplateModel):
    """Spec of a worker pod. Fields not listed here are those of a Pod's spec."""

    containers: Annotated[tuple[Container, ...], Field(min_length=1, max_length=16)]
    """Containers of the pod; one of them is named trainer."""
    init_containers: Annotated[tuple[Container, ...], Field(max_length=16)] = ()
    """Containers that run before the others."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=64)] = ()
    """Volumes of the pod."""
    restart_policy: Literal["Never"] | None = None
    """Never or absent: Holdfast restarts workers itself."""
    node_name: Annotated[str, Field(max_length=253)] | None = None
    """Not allowed, because it would bind all workers to one node. Use nodeSelector or affinity."""
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=86400)] | None = None
    """Seconds between the request to stop a pod and its kill; 30 if absent. The save before a stop must fit into
    them."""

    @model_validator(mode="after")
    def _not_bound(self) -> Self:
        if self.node_name is not None:
            raise FieldError("nodeName", self.node_name, "no nodeName; use nodeSelector or affinity")
        return self


class PodMetadata(SpecModel):
    """Labels and annotations of worker pods. Holdfast chooses the names of the pods."""

    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)] = Field(
        default_factory=dict
    )
    """Labels of the pods. Keys under holdfast.dev/ are reserved."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=262144)]], Field(max_length=64)] = Field(
        default_factory=dict
    )
    """Annotations of the pods. Keys under holdfast.dev/ are reserved."""

    @model_validator(mode="after")
    def _not_reserved(self) -> Self:
        for field, found in (("labels", self.labels), ("annotations", self.annotations)):
            for key in found:
                if key.startswith(f"{keys.API_GROUP}/"):
                    raise FieldError(field, key, f"a key that does not begin with {keys.API_GROUP}/")
        return self


class PodTemplate(SpecModel):
    """Template of the worker pods."""

    metadata: PodMetadata = Field(default_factory=PodMetadata)
    """Labels and annotations of the pods."""
    spec: PodSpec
    """Spec of the pods."""

    def to_manifest(self) -> dict[str, Any]:
        """The template as the user wrote it: a fresh tree of dicts and lists that the caller may change."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @property
    def trainer(self) -> Container:
        """The container that runs the training process."""
        return next(c for c in self.spec.containers if c.name == keys.TRAINER_CONTAINER)

    @model_validator(mode="after")
    def _has_trainer(self) -> Self:
        names = [c.name for c in self.spec.containers]
        if names.count(keys.TRAINER_CONTAINER) != 1:
            raise FieldError("containers", names, f"exactly one container named {keys.TRAINER_CONTAINER}")
        if not self.trainer.command:
            raise FieldError(f"containers[name={keys.TRAINER_CONTAINER}].command", [], "at least one element")
        return self
