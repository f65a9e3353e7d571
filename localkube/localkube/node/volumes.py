"""A pod's volumes as folders of the host. Content from the API is replaced atomically when it changes."""

import os
import shutil
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from localkube.node.api import Api, ApiError
from localkube.node.env import BadConfig, Fetch, entries
from localkube.node.objects import Json
from localkube.node.references import PodFacts

DEFAULT_MODE = 0o644
TOKEN_SECONDS = 3607
REFRESH_SHARE = 0.8  # a token is replaced after this share of its life

Tree = dict[str, tuple[bytes, int]]
"""Relative path -> (content, mode)."""


class NotMounted(Exception):
    """A volume is not available now. The pod waits, and the node tries again."""


def write_atomically(folder: Path, tree: Tree) -> None:
    """Make the folder show exactly these files. Readers see all of the old ones or all of the new ones.

    Each name is a link into `..data`, which is a link to a folder that never changes once it is visible.
    """
    current = folder / "..data"
    if current.is_symlink() and _read_tree(current) == tree:
        return
    old = os.readlink(current) if current.is_symlink() else None
    fresh = f"..{time.time_ns()}"
    for name, (content, mode) in tree.items():
        path = folder / fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    (folder / fresh).mkdir(exist_ok=True)
    swap = folder / "..data_tmp"
    swap.unlink(missing_ok=True)
    swap.symlink_to(fresh)
    swap.rename(current)
    tops = {PurePosixPath(name).parts[0] for name in tree}
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"..data/{top}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old:
        shutil.rmtree(folder / old, ignore_errors=True)


def _read_tree(folder: Path) -> Tree:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in files
    }  # fmt: skip


def selected(found: dict[str, bytes], source: Json, default_mode: int) -> Tree:
    """The files of a ConfigMap or Secret source: all entries `found`, or those that the source's `items` select.

    `default_mode` is for items without a mode of their own. Raises NotMounted for a missing key.
    """
    items = source.get("items")
    if not items:
        return {key: (value, default_mode) for key, value in found.items()}
    tree: Tree = {}
    for item in items:
        if item["key"] in found:
            tree[item["path"]] = (found[item["key"]], item.get("mode", default_mode))
        elif not source.get("optional"):
            raise NotMounted(f"references non-existent key: {item['key']}")
    return tree


@dataclass
class Token:
    """A token, and when to request the next one on this process's monotonic clock."""

    text: str
    refresh_at: float


@dataclass
class Volumes:
    """All volumes of one pod."""

    facts: PodFacts
    folder: Path
    api: Api
    fetch: Fetch
    _sources: dict[str, Path] = field(default_factory=dict)
    _tokens: dict[tuple[str, str], Token] = field(default_factory=dict)

    async def set_up(self) -> None:
        """Create every volume of the pod. Raises NotMounted."""
        for volume in self.facts.pod["spec"].get("volumes") or []:
            try:
                self._sources[volume["name"]] = await self._one(volume)
            except (BadConfig, NotMounted, OSError, ApiError) as problem:
                raise NotMounted(f'volume "{volume["name"]}": {problem}') from problem

    async def refresh(self) -> None:
        """Update the content that comes from the API. Raises NotMounted; the old content then stays."""
        for volume in self.facts.pod["spec"].get("volumes") or []:
            if not {"configMap", "secret", "downwardAPI", "projected"}.isdisjoint(volume):
                try:
                    await self._one(volume)
                except (BadConfig, NotMounted, OSError, ApiError) as problem:
                    raise NotMounted(f'volume "{volume["name"]}": {problem}') from problem

    def source(self, name: str, sub_path: str = "") -> Path:
        """The host's path of a volume or of a path in it, which is created if it is missing.

        Raises BadConfig for a path that leaves the volume.
        """
        base = self._sources[name]
        if not sub_path:
            return base
        if sub_path.startswith("/") or ".." in PurePosixPath(sub_path).parts:
            raise BadConfig(f"subPath {sub_path!r} must be relative and must not contain '..'")
        path = base / sub_path
        if not path.exists():
            path.mkdir(parents=True)
        resolved = path.resolve()
        if not resolved.is_relative_to(base.resolve()):
            raise BadConfig(f"subPath {sub_path!r} leads out of its volume")
        return resolved

    async def _one(self, volume: Json) -> Path:
        if "hostPath" in volume:
            return host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return await self._claimed(volume["persistentVolumeClaim"]["claimName"])
        folder = self.folder / str(volume["name"])
        folder.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            folder.chmod(0o777)
            return folder
        for key, body in volume.items():
            if key in ("configMap", "secret", "downwardAPI", "projected"):
                sources = body.get("sources") or [] if key == "projected" else [{key: _named(key, body)}]
                tree: Tree = {}
                for source in sources:
                    tree |= await self._projected(source, body.get("defaultMode", DEFAULT_MODE))
                write_atomically(folder, tree)
                return folder
        raise NotMounted(f"a volume of kind {sorted(set(volume) - {'name'})} is not supported by process nodes")

    async def _projected(self, source: Json, mode: int) -> Tree:
        for key, kind in (("configMap", "configmaps"), ("secret", "secrets")):
            if key in source:
                found = await entries(self.fetch, kind, source[key])
                return {} if found is None else selected(found, source[key], mode)
        if "downwardAPI" in source:
            return {item["path"]: (self._fact(item).encode(), item.get("mode", mode)) for item in
                    source["downwardAPI"].get("items") or []}  # fmt: skip
        if "serviceAccountToken" in source:
            token = source["serviceAccountToken"]
            return {token["path"]: ((await self._token(token)).encode(), mode)}
        raise NotMounted(f"a projected source of kind {sorted(source)} is not supported by process nodes")

    def _fact(self, item: Json) -> str:
        try:
            if "fieldRef" in item:
                return self.facts.field(item["fieldRef"]["fieldPath"])
            return self.facts.resource(item["resourceFieldRef"], {})
        except ValueError as problem:
            raise NotMounted(str(problem)) from problem

    async def _token(self, source: Json) -> str:
        audience = source.get("audience", "")
        key = (audience, source["path"])
        known = self._tokens.get(key)
        if known and time.monotonic() < known.refresh_at:
            return known.text
        meta, spec = self.facts.pod["metadata"], self.facts.pod["spec"]
        account = spec.get("serviceAccountName") or "default"
        seconds = int(source.get("expirationSeconds") or TOKEN_SECONDS)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [audience] if audience else [],
                "expirationSeconds": seconds,
                "boundObjectRef": bound,
            },
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
        answer = await self.api.request("POST", path, body=body)
        life = min(seconds, int(answer["spec"].get("expirationSeconds") or seconds))
        self._tokens[key] = Token(answer["status"]["token"], time.monotonic() + REFRESH_SHARE * life)
        return self._tokens[key].text

    async def _claimed(self, claim: str) -> Path:
        """The folder of the host behind a bound claim. Raises NotMounted."""
        namespace = self.facts.pod["metadata"]["namespace"]
        found = await self.api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
        if (found.get("status") or {}).get("phase") != "Bound":
            raise NotMounted(f'persistentvolumeclaim "{claim}" is not bound')
        spec = (await self.api.get(f"/api/v1/persistentvolumes/{found['spec']['volumeName']}"))["spec"]
        for kind in ("hostPath", "local"):
            if kind in spec:
                return host_path(spec[kind])
        raise NotMounted(f'persistentvolumeclaim "{claim}": process nodes mount hostPath and local volumes only')


def _named(key: str, body: Json) -> Json:
    """A plain volume's body in the form of a projected source. Only a Secret volume names its object differently."""
    return body | {"name": body["secretName"]} if key == "secret" and "secretName" in body else body


def host_path(source: Json) -> Path:
    """A path of the host, checked or created as its type says. Raises NotMounted."""
    path, kind = Path(source["path"]), source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif kind == "FileOrCreate" and not path.exists():
        path.touch(0o644)
    checks = {"Directory": Path.is_dir, "DirectoryOrCreate": Path.is_dir, "File": Path.is_file,
              "FileOrCreate": Path.is_file, "Socket": Path.is_socket, "CharDevice": Path.is_char_device,
              "BlockDevice": Path.is_block_device}  # fmt: skip
    if kind and (kind not in checks or not checks[kind](path)):
        raise NotMounted(f"hostPath {path} is not of type {kind}")
    if not path.exists():
        raise NotMounted(f"hostPath {path} does not exist")
    return path
