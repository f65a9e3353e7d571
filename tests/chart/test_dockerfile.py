"""The images: built from the lock alone, without root, each without the other half's dependencies."""

from __future__ import annotations

import fnmatch
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from holdfast_contract import keys
from tests.support.cluster.chart import Helm, only

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = tomllib.loads((ROOT / "uv.lock").read_text())


def instructions() -> list[tuple[str, str]]:
    """Instructions with their arguments, continuation lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions of each named stage, those of the stages it is built from first."""
    found: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for word, rest in instructions():
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            current = found[name] = list(found.get(base, []))
        current.append((word, rest))
    return found


def arguments() -> dict[str, str]:
    """Build arguments with their defaults."""
    return dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG")


def closure(extra: str) -> set[str]:
    """Names of all packages that an extra brings, by the lock."""
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in LOCK["package"]:
        packages.setdefault(package["name"], []).append(package)
    (project,) = packages["holdfast-training"]
    waiting = [d["name"] for d in project["optional-dependencies"][extra]]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for package in packages[name]:
            waiting += [d["name"] for d in package.get("dependencies", [])]
            waiting += [d["name"] for group in package.get("optional-dependencies", {}).values() for d in group]
    return seen


@pytest.mark.parametrize(
    ("target", "has", "has_not"),
    [
        ("operator", {"kopf", "kubernetes", "prometheus-client", "aiohttp"}, {"jax", "jaxlib", "orbax-checkpoint"}),
        ("trainer", {"jax", "orbax-checkpoint", "xxhash"}, {"kopf", "kubernetes", "pytest"}),
    ],
)
def test_an_image_holds_its_own_half_only(target: str, has: set[str], has_not: set[str]) -> None:
    synced = [rest for word, rest in stages()[f"{target}-build"] if word == "RUN" and "uv sync" in rest]
    assert len(synced) == 2
    for command in synced:
        assert re.findall(r"--extra (\w+)", command) == [target]
        assert {"--locked", "--no-default-groups"} <= set(command.split())
    assert has <= closure(target)
    assert closure(target) & has_not == set()


@pytest.mark.parametrize("target", ["operator", "trainer"])
def test_an_image_runs_without_root_and_without_build_tools(target: str) -> None:
    stage = stages()[target]
    user = [rest for word, rest in stage if word == "USER"][-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a number, so that runAsNonRoot can be checked"
    assert [rest for word, rest in stage if word == "COPY"] == [f"--from={target}-build /opt/holdfast /opt/holdfast"]
    assert [rest for word, rest in stage if word == "RUN"] == []


def test_chart_and_image_agree() -> None:
    stage = stages()["operator"]
    pod = only(Helm().template(), "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (user,) = (rest for word, rest in stage if word == "USER")
    assert user == "65532:65532", "the chart's page names it"
    assert pod["securityContext"]["runAsNonRoot"] is True, "which the kubelet can check: the image's user is a number"
    assert {"runAsUser", "runAsGroup", "fsGroup"} & set(pod["securityContext"]) == set()
    assert ("EXPOSE", f"{keys.CONTROL_PORT} {keys.METRICS_PORT} {keys.HEALTH_PORT}") in stage
    assert ("CMD", str(container["command"]).replace("'", '"')) in stage


def test_versions_are_those_of_the_lock_and_of_the_tests() -> None:
    (uv,) = (package["version"] for package in LOCK["package"] if package["name"] == "uv")
    assert arguments()["UV_VERSION"] == uv
    minimum = LOCK["requires-python"].removeprefix(">=")
    assert arguments()["PYTHON_VERSION"] == minimum
    assert sys.version_info >= tuple(int(part) for part in minimum.split("."))


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    copied = {
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert [source for source in copied if not any(fnmatch.fnmatch(source, pattern) for pattern in sent)] == []
    assert sorted(sent) == sorted(copied)
