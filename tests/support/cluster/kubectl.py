"""Runs the kubectl that belongs to the test's control plane."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from localkube import binaries

_COMMAND_SECONDS: Final = 60


class KubectlError(AssertionError):
    """kubectl ended with an error; the text is what it said."""


def kubectl(kubeconfig: Path, *arguments: str, text: str = "") -> str:
    """Standard output of one kubectl command, which may read ``text``. Raises KubectlError."""
    command = [str(binaries.control_plane().kubectl), f"--kubeconfig={kubeconfig}", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    if done.returncode != 0:
        raise KubectlError(done.stderr)
    return done.stdout
