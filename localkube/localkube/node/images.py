"""Image names: on a process node an image only selects an environment of the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HOST_IMAGE = "localkube/host"
PROJECT_PREFIX = "holdfast/"
DEFAULT_ENTRYPOINTS: Mapping[str, Sequence[str]] = {"holdfast/operator": ("python", "-m", "holdfast_operator")}


class UnknownImage(Exception):
    """No environment stands for an image of this name."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a container finds instead of an image's content."""

    path: str
    entrypoint: Sequence[str] = ()
    folders: Sequence[str] = ()
    """What belongs to the image: a volume above one of these must not hide it."""


def content(environment: Path) -> tuple[str, ...]:
    """A Python environment's folder and those of the projects installed editable into it."""
    lines = [
        line for file in environment.glob("lib/python*/site-packages/*.pth") for line in file.read_text().splitlines()
    ]
    sources = {line.rstrip("/") for line in lines if line.startswith("/") and Path(line).is_dir()}
    return (str(environment), *sorted(sources))


def repository(image: str) -> str:
    """An image's name without registry host, tag and digest."""
    name = image.split("@", 1)[0]
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        name = rest
    head, slash, last = name.rpartition("/")
    return head + slash + last.split(":", 1)[0]


@dataclass(frozen=True, slots=True)
class Images:
    """Which environment each image name stands for."""

    venv: Path
    host_path: str
    folders: Mapping[str, Path] = field(default_factory=dict)
    entrypoints: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def find(self, image: str) -> Environment:
        """The environment of an image. Raises UnknownImage with what is allowed."""
        name = repository(image)
        entrypoint = self.entrypoints.get(name) or DEFAULT_ENTRYPOINTS.get(name, ())
        folder = self.folders.get(name)
        if folder is None and name.startswith(PROJECT_PREFIX):
            folder = self.venv
        if folder is not None:
            return Environment(f"{folder}/bin:{self.host_path}", entrypoint, content(folder))
        if name == HOST_IMAGE:
            return Environment(self.host_path, entrypoint)
        known = ", ".join([f"{PROJECT_PREFIX}*", HOST_IMAGE, *sorted(self.folders)])
        raise UnknownImage(f"image {image!r}: this node has no environment of that name (it knows {known})")
