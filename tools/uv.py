"""Find or fetch the pinned uv and print its path; standard library only, for a machine that has Python and no pip.

The version, the address and the SHA-256 of the wheel come from uv.lock, so that the lock file pins the tool that
reads it. The binary is kept in the user's cache, keyed by its digest.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import sys
import tomllib
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MINIMUM_PYTHON = (3, 11)
DOWNLOAD_TIMEOUT_SECONDS = 120


def main() -> None:
    if sys.version_info < MINIMUM_PYTHON:
        sys.exit(f"python: found {platform.python_version()}, allowed: 3.11 or newer (set PYTHON=/path/to/python3.11)")
    wheel = wheel_for_this_machine(tomllib.loads((ROOT / "uv.lock").read_text()))
    digest = wheel["hash"].removeprefix("sha256:")
    binary = cache_folder() / f"uv-{digest[:16]}" / "uv"
    if not binary.exists():
        sys.stderr.write(f"holdfast: fetching {wheel['url'].rsplit('/', 1)[-1]}\n")
        install(wheel["url"], digest=digest, binary=binary)
    print(binary)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def wheel_for_this_machine(lock: dict[str, Any]) -> dict[str, str]:
    wheels: list[dict[str, str]] = next(p["wheels"] for p in lock["package"] if p["name"] == "uv")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    system = platform.system()
    if system == "Darwin":
        marks = ["macosx", "arm64" if machine == "aarch64" else "x86_64"]
    else:
        marks = ["manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux", machine]
    for wheel in wheels:
        if all(mark in wheel["url"].rsplit("/", 1)[-1] for mark in marks):
            return wheel
    sys.exit(f"platform: found {system} {machine}, allowed: one of the {len(wheels)} platforms uv is built for")


def install(url: str, *, digest: str, binary: Path) -> None:
    with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_SECONDS) as answer:  # noqa: S310  https, from uv.lock
        data = answer.read()
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        sys.exit(f"{url}: found SHA-256 {found}, allowed: {digest} as in uv.lock")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".data/scripts/uv"))
        content = archive.read(name)
    binary.parent.mkdir(parents=True, exist_ok=True)
    partial = binary.with_suffix(f".{os.getpid()}")
    partial.write_bytes(content)
    partial.chmod(0o755)
    partial.replace(binary)


if __name__ == "__main__":
    main()
