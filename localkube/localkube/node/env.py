"""A container's environment and command line, with references resolved and $(NAME) expanded."""

import base64
import re
from collections.abc import Awaitable, Callable, Mapping

from localkube.node.api import ApiError
from localkube.node.objects import Json
from localkube.node.references import PodFacts

Fetch = Callable[[str, str], Awaitable[Json]]
"""Called with ("configmaps" or "secrets", name), returns the object. Raises ApiError."""

_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
NOT_FOUND = 404


class BadConfig(Exception):
    """A container cannot be created from its pod's references (waiting reason CreateContainerConfigError)."""


def expand(text: str, names: Mapping[str, str]) -> str:
    """Replace $(NAME) by its value. `$$` is a dollar sign, and an unknown name stays as it is."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return names.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def decoded(kind: str, item: Json) -> dict[str, bytes]:
    """The entries of a ConfigMap or Secret as bytes."""
    if kind == "secrets":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    texts = {key: value.encode() for key, value in (item.get("data") or {}).items()}
    return texts | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}


async def entries(fetch: Fetch, kind: str, reference: Json) -> dict[str, bytes] | None:
    """The entries of a ConfigMap or Secret; None if it is missing and optional.

    `fetch` reads the object, `kind` is "configmaps" or "secrets", and `reference` names it. Raises BadConfig.
    """
    try:
        return decoded(kind, await fetch(kind, reference["name"]))
    except ApiError as problem:
        if problem.status == NOT_FOUND and reference.get("optional"):
            return None
        if problem.status == NOT_FOUND:
            raise BadConfig(f'{kind.removesuffix("s")} "{reference["name"]}" not found') from problem
        raise BadConfig(str(problem)) from problem


class Environ:
    """Builds the environment of one container."""

    def __init__(self, facts: PodFacts, container: Json, fetch: Fetch, base: Mapping[str, str]) -> None:
        """`facts` has the values of fieldRefs, `fetch` reads ConfigMaps and Secrets, and `base` is what the node sets."""
        self._facts = facts
        self._container = container
        self._fetch = fetch
        self._env = dict(base)

    async def build(self) -> dict[str, str]:
        """The environment: `base`, then envFrom, then env in order. Raises BadConfig."""
        for source in self._container.get("envFrom") or []:
            await self._add_all(source)
        for entry in self._container.get("env") or []:
            await self._add(entry)
        return self._env

    async def _add_all(self, source: Json) -> None:
        for key, kind in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if key in source:
                found = await entries(self._fetch, kind, source[key])
                for name, value in (found or {}).items():
                    self._env[source.get("prefix", "") + name] = value.decode()

    async def _add(self, entry: Json) -> None:
        source = entry.get("valueFrom")
        if not source:
            self._env[entry["name"]] = expand(entry.get("value", ""), self._env)
            return
        value = await self._from(source)
        if value is not None:
            self._env[entry["name"]] = value

    async def _from(self, source: Json) -> str | None:
        try:
            if "fieldRef" in source:
                return self._facts.field(source["fieldRef"]["fieldPath"])
            if "resourceFieldRef" in source:
                return self._facts.resource(source["resourceFieldRef"], self._container)
        except ValueError as problem:
            raise BadConfig(str(problem)) from problem
        for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
            if key in source:
                return await self._key(kind, source[key])
        raise BadConfig(f"valueFrom {sorted(source)}: not supported by process nodes")

    async def _key(self, kind: str, reference: Json) -> str | None:
        found = await entries(self._fetch, kind, reference)
        if found is not None and reference["key"] in found:
            return found[reference["key"]].decode()
        if reference.get("optional"):
            return None
        raise BadConfig(f'{kind.removesuffix("s")} "{reference["name"]}" has no key "{reference["key"]}"')


def command_line(container: Json, entrypoint: list[str], env: Mapping[str, str]) -> list[str]:
    """The container's command, or else its image's `entrypoint`, and its args, with the variables of `env` expanded.

    Raises BadConfig if there is no command.
    """
    command = container.get("command") or entrypoint
    words = [expand(word, env) for word in [*command, *(container.get("args") or [])]]
    if not command:
        raise BadConfig("no command: on a process node an image has no entry point, so the container must name one")
    return words
