"""Process nodes of a cluster: each is a process of `localkube.node`, and its pods are processes below it."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localkube.certs import Authority
from localkube.components import PROGRAMS, ClusterLayout
from localkube.control import Control, ProcessSpec, ProcessState
from localkube.errors import NodeNameError
from localkube.kubeconfig import write_kubeconfig

_STOP_GRACE_SECONDS = 10.0
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_name(name: str) -> None:
    """Raise NodeNameError unless the name suits a node, and so a folder, a label and a Node object."""
    if not _NAME.fullmatch(name):
        raise NodeNameError(f"node name {name!r}: must be at most 63 lower-case letters, digits and inner dashes")
    if name in PROGRAMS:
        raise NodeNameError(f"node name {name!r}: that is a program of the control plane")


@dataclass(frozen=True)
class NodeOptions:
    """What a user may choose about a node."""

    labels: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, Path] = field(default_factory=dict)
    """Environments (folders with a `bin` folder) by image name or shell pattern (`team/*`); the first match counts."""
    entrypoints: Mapping[str, str] = field(default_factory=dict)
    """Commands by image name, for containers that name none; written as in a shell."""
    arguments: Sequence[str] = ()
    """Further arguments of `python -m localkube.node`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the node's own environment, which pods do not see."""


class Nodes:
    """Starts and ends nodes. Methods raise NodeNameError for a wrong name, SupervisorError if the cluster is gone."""

    def __init__(self, layout: ClusterLayout, server_url: str, control: Control) -> None:
        """`layout` has the nodes' files, `server_url` goes into their kubeconfigs, and `control` runs their processes."""
        self._layout = layout
        self._server_url = server_url
        self._control = control

    def kubeconfig(self, name: str) -> Path:
        """Write the node's kubeconfig (client certificate for `system:node:<name>`) and return its path."""
        check_name(name)
        authority = Authority.load(self._layout.pki)
        folder = self._layout.nodes / name
        folder.mkdir(mode=0o700, exist_ok=True)
        identity = authority.client(f"system:node:{name}", ["system:nodes"])
        return write_kubeconfig(folder / "kubeconfig", self._server_url, authority.pem, identity)

    def add(self, name: str, options: NodeOptions) -> int:
        """Start a node's process and return its id, without waiting for the node to be Ready."""
        argv = [sys.executable, "-m", "localkube.node", "--kubeconfig", str(self.kubeconfig(name)), "--name", name]
        images = {pattern: folder.absolute() for pattern, folder in options.images.items()}
        flags = {"--label": options.labels, "--image": images, "--entrypoint": options.entrypoints}
        pairs = [
            word for flag, given in flags.items() for key, value in given.items() for word in (flag, f"{key}={value}")
        ]
        program = ProcessSpec(
            name=name,
            argv=[*argv, "--state-dir", str(self._layout.nodes / name / "state"), *pairs, *options.arguments],
            log=self._layout.logs / f"{name}.log",
            role="node",
            environment=options.environment,
        )
        return self._control.start(program)

    def kill(self, name: str) -> None:
        """Node death: SIGKILL to the node and all that runs on it. Its Node object stays, and its Lease expires."""
        self._check_node(name)
        self._control.stop(name, signal_number=signal.SIGKILL)

    def stop(self, name: str) -> None:
        """End the node's process in order and remove its files, so it cannot be restarted. Its Node object stays."""
        self._check_node(name)
        self._control.stop(name, signal_number=signal.SIGTERM, grace_seconds=_STOP_GRACE_SECONDS)
        self.forget(name)

    def forget(self, name: str) -> None:
        """Remove the files of a node whose process has ended, except its log."""
        self._control.forget(name)
        shutil.rmtree(self._layout.nodes / name, ignore_errors=True)

    def restart(self, name: str) -> None:
        """Power-cycle: kill the node and all that runs on it, and start it again."""
        self._check_node(name)
        self._control.restart(name)

    def processes(self) -> dict[str, ProcessState]:
        """The nodes' processes by node name, including those that have ended."""
        return {name: state for name, state in self._control.processes().items() if state.role == "node"}

    def _check_node(self, name: str) -> None:
        nodes = self.processes()
        if name not in nodes:
            raise NodeNameError(f"no process node named {name!r} (there are: {', '.join(nodes) or 'none'})")
