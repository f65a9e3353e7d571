"""Image names: on a process node an image only selects an environment of the host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

HOST_IMAGE = "localkube/host"


class UnknownImage(Exception):
    """The node has no environment for an image of this name."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a container finds instead of an image's content."""

    path: str
    entrypoint: Sequence[str] = ()
    folders: Sequence[str] = ()
    """What belongs to the image: a volume above one of these must not hide it."""


def content(environment: Path) -> tuple[str, ...]:
    """A Python environment's folder and the folders of the projects that are installed editable in it."""
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
    """Which environment each image name selects."""

    host_path: str
    """`PATH` of the host, which every container has, behind the `bin` folder of its environment."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Environments by image name or shell pattern (`team/*`); the first that matches counts."""
    entrypoints: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Commands by image name, for containers that name none."""

    def find(self, image: str) -> Environment:
        """The environment of an image. Raises UnknownImage with the names that this node knows."""
        name = repository(image)
        entrypoint = self.entrypoints.get(name, ())
        folder = next((folder for pattern, folder in self.folders.items() if fnmatchcase(name, pattern)), None)
        if folder is not None:
            return Environment(f"{folder}/bin:{self.host_path}", entrypoint, content(folder))
        if name == HOST_IMAGE:
            return Environment(self.host_path, entrypoint)
        known = ", ".join([HOST_IMAGE, *self.folders])
        raise UnknownImage(f"image {image!r}: this node has no environment of that name (it knows {known})")
