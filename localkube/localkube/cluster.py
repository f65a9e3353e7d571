"""A Kubernetes control plane that starts in seconds and ends with the process that started it, without a trace."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from localkube import components
from localkube.access import ClusterAccess
from localkube.binaries import Binaries, control_plane
from localkube.certs import Authority
from localkube.components import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER, ClusterLayout, ClusterOptions
from localkube.control import Control, ProcessSpec, ProcessState, launch_supervisor
from localkube.errors import LocalkubeError, StartError, SupervisorError
from localkube.node.grants import GRANTS
from localkube.nodes import NodeOptions, Nodes, check_name
from localkube.progress import Progress, silent
from localkube.readiness import ReadinessCheck
from localkube.registry import RegistryEntry, claim, find

if TYPE_CHECKING:
    from kubernetes.client import Configuration

STEP_SECONDS = 60.0
"""How long one step of a start may take. On an idle machine a step takes about 3 s."""
_END_SECONDS = 40.0
_POLL_SECONDS = 0.02
_TAIL_BYTES = 4000


class Cluster(ClusterAccess):
    """A control plane, as a context manager or by `start` and `stop`.

    It ends with the process that started it, however that process ends, unless `detach` is called.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        state_dir: Path | None = None,
        options: ClusterOptions | None = None,
        progress: Progress = silent,
    ) -> None:
        """Describe a cluster; `start` starts it.

        `name` is by default a random one. `state_dir` must be absent or empty and is removed at the end; by default it
        is a new temporary folder. `progress` is called with one line for each step of the start.
        """
        self.name = name or f"lk-{secrets.token_hex(4)}"
        self.options = options or ClusterOptions()
        self._progress = progress
        self._given_state_dir = state_dir
        self._layout: ClusterLayout | None = None
        self._port = 0
        self._entry = RegistryEntry(self.name)
        self._supervisor: subprocess.Popen[bytes] | None = None

    @classmethod
    def attach(cls, name: str) -> Cluster:
        """Reach a running cluster by its name. Raises ClusterNameError if none has it, LocalkubeError while it starts."""
        cluster = cls(name)
        record = find(name).read()
        if "server_url" not in record:
            raise LocalkubeError(f"cluster {name!r} is still being started")
        cluster._layout = ClusterLayout(Path(record["state_dir"]), cluster._entry.folder)
        cluster._port = urlsplit(record["server_url"]).port or 0
        return cluster

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig (mode 0600), with the certificates in it."""
        return self.layout.kubeconfig("admin")

    @property
    def server_url(self) -> str:
        """Where the API server answers."""
        return f"https://127.0.0.1:{self.server_port}"

    @property
    def server_port(self) -> int:
        """The API server's port. Raises LocalkubeError unless the cluster is running."""
        if not self._port:
            raise LocalkubeError(f"cluster {self.name!r} is not running")
        return self._port

    @property
    def audit_log(self) -> Path:
        """One JSON object per request: all writes, and all reads except those of the control plane itself."""
        return self.layout.audit_log

    @property
    def layout(self) -> ClusterLayout:
        """The cluster's files. Raises LocalkubeError unless it is running."""
        if self._layout is None:
            raise LocalkubeError(f"cluster {self.name!r} is not running")
        return self._layout

    @property
    def discovery_cache(self) -> Path:
        """In the cluster's own folder: its port is random, so elsewhere nothing would read or remove it."""
        return self.layout.state / "discovery-cache"

    @property
    def control(self) -> Control:
        """The supervisor of the cluster's processes."""
        return Control(self._entry)

    @property
    def nodes(self) -> Nodes:
        """The process nodes of this cluster."""
        return Nodes(self.layout, self.server_url, self.control)

    def start(self) -> None:
        """Start the control plane and wait until pods can be created.

        Raises BinariesError, ClusterNameError, or StartError with the end of the log of the program that did not start.
        """
        binaries = control_plane(self._progress)
        self._entry, lock_handle = claim(self.name)
        try:
            self._create(lock_handle)
        finally:
            os.close(lock_handle)
        try:
            self._bring_up(binaries)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process and remove every file. It does nothing if the cluster has ended already."""
        if self._layout is None:
            return
        try:
            self.control.shutdown()
        except SupervisorError:
            # The supervisor was killed or hangs. Its processes die with it, and its files are removed here.
            if self._supervisor is not None:
                self._supervisor.kill()
                self._supervisor.wait()
            self._entry.remove()
        self._collect_supervisor()
        self._layout, self._port = None, 0

    def detach(self) -> None:
        """Let the cluster outlive this process; `Cluster.attach(name).stop()` ends it."""
        self.control.detach()

    def processes(self) -> Mapping[str, ProcessState]:
        """The cluster's processes by name: `kube-apiserver`, `node-1`, ..."""
        return self.control.processes()

    def restart_apiserver(self) -> None:
        """Kill the API server (SIGKILL), start it on the same port and data, and wait until it is ready."""
        self.control.restart(APISERVER)
        self._await(APISERVER, self._readiness().api_server, process=APISERVER)

    def kill_apiserver(self) -> None:
        """Kill the API server (SIGKILL) and leave it down; `restart_apiserver` brings it back."""
        self.control.stop(APISERVER)

    def node_kubeconfig(self, name: str) -> Path:
        """Write a kubeconfig for the user `system:node:<name>` in the group `system:nodes` and return its path."""
        return self.nodes.kubeconfig(name)

    def add_node(self, name: str, options: NodeOptions | None = None) -> None:
        """Start a process node and wait until it is Ready."""
        self.add_nodes([name], options)

    def add_nodes(self, names: Sequence[str], options: NodeOptions | None = None) -> None:
        """Start process nodes at the same time and wait until all are Ready.

        Raises NodeNameError before it starts any, or StartError with the end of the log of a node that did not start.
        """
        for name in names:
            check_name(name)
        grants = {"apiVersion": "v1", "kind": "List", "items": GRANTS}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(grants))
        for name in names:
            self._progress(f"starting {name}")
            self.nodes.add(name, options or NodeOptions())
        readiness = self._readiness()
        for name in names:
            self._await_node(name, readiness)

    def _await_node(self, name: str, readiness: ReadinessCheck) -> None:
        try:
            self._await(f"node {name}", partial(readiness.node, name), process=name)
        except StartError:
            state = self.nodes.processes().get(name)
            if state is not None and state.exit_code is not None:
                self.nodes.forget(name)
            raise

    def _create(self, lock_handle: int) -> None:
        state = self._make_state_dir()
        self._layout = ClusterLayout(state, self._entry.folder)
        self._entry.write({"name": self.name, "state_dir": str(state), "owner_pid": os.getpid()})
        try:
            self._supervisor = launch_supervisor(self._entry, lock_handle, state / "supervisor.log")
        except BaseException:
            self._entry.remove()
            self._layout = None
            raise

    def _make_state_dir(self) -> Path:
        given = self._given_state_dir
        try:
            if given is None:
                return Path(tempfile.mkdtemp(prefix=f"localkube-{self.name}-"))
            given.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(given.iterdir()):
                raise LocalkubeError(f"state_dir {given} is not empty; it would be removed at the end")
        except BaseException:
            self._entry.remove()
            raise
        given.chmod(0o700)
        return given.resolve()

    def _bring_up(self, binaries: Binaries) -> None:
        layout, control, options = self.layout, self.control, self.options
        self._port = control.reserve_port()
        components.prepare(layout, Authority.create("localkube"), self.server_url)
        self._launch(ETCD, components.etcd_command(binaries, layout, options))
        self._await(ETCD, layout.etcd_socket.exists)
        self._launch(APISERVER, components.apiserver_command(binaries, layout, options, port=self._port))
        readiness = self._readiness()
        self._await(APISERVER, readiness.api_server)
        self._launch(CONTROLLER_MANAGER, components.controller_manager_command(binaries, layout, options))
        self._launch(SCHEDULER, components.scheduler_command(binaries, layout, options))
        self._await(CONTROLLER_MANAGER, readiness.default_account)
        record = {**self._entry.read(), "server_url": self.server_url, "kubeconfig": str(self.kubeconfig)}
        self._entry.write(record)

    def _launch(self, name: str, argv: Sequence[str]) -> None:
        self._progress(f"starting {name}")
        log = self.layout.logs / f"{name}.log"
        self.control.start(ProcessSpec(name, argv, log, environment=components.environment()))

    def _readiness(self) -> ReadinessCheck:
        return ReadinessCheck(self._configuration())

    def _await(self, what: str, ready: Callable[[], bool], *, process: str | None = None) -> None:
        """Wait until `ready()` is true. Raises StartError after STEP_SECONDS, or if `process` (None: any) has ended."""
        deadline = time.monotonic() + STEP_SECONDS
        while not ready():
            for name, state in self.processes().items():
                if state.exit_code is not None and (process is None or name == process):
                    raise StartError(f"{name} ended with {state.exit_code} before {what} was ready;{self._tail(name)}")
            if time.monotonic() > deadline:
                raise StartError(f"{what} was not ready within {STEP_SECONDS:.0f} s;{self._tail(process or what)}")
            time.sleep(_POLL_SECONDS)

    def _tail(self, process: str) -> str:
        path = self.layout.logs / f"{process}.log"
        if not path.exists():
            return " it has no log"
        content = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return f" its log ends:\n{content}"

    def _collect_supervisor(self) -> None:
        if self._supervisor is None:
            return
        if self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        self._supervisor.wait(timeout=_END_SECONDS)
        self._supervisor = None

    def _configuration(self) -> Configuration:
        configuration = super()._configuration()
        configuration.proxy = None  # a proxy that the environment names cannot reach this machine's loopback
        return configuration

    def _client_files(self) -> str:
        return str(self.layout.pki)

    def _kubectl_path(self) -> Path:
        return control_plane().kubectl
