"""The command lines of the control plane's programs, and the files that the command lines name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from localkube.binaries import Binaries
from localkube.certs import Authority, signing_key, write_private
from localkube.kubeconfig import write_kubeconfig

CLUSTER_NAME = "localkube"
CLUSTER_DOMAIN = "cluster.local"
SERVICE_ACCOUNT_ISSUER = f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}"

ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
)
PROGRAMS = frozenset({ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER})

_SERVICE_RANGE = "10.96.0.0/16"
_FIRST_SERVICE_ADDRESS = "10.96.0.1"
_AUDIT_MEGABYTES = 1024
# Loops for clouds, volumes that attach, certificate requests and autoscaling: nothing here could serve them.
_UNUSED_LOOPS = (
    "cloud-node-lifecycle-controller",
    "node-ipam-controller",
    "node-route-controller",
    "service-lb-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "horizontal-pod-autoscaler-controller",
    "bootstrap-signer-controller",
    "token-cleaner-controller",
)


@dataclass(frozen=True)
class ClusterOptions:
    """What a user may choose about a cluster."""

    node_monitor_grace_seconds: int = 12
    """How long a node may be silent before it is NotReady (the default of a real cluster is 50)."""
    eviction_toleration_seconds: int = 300
    """How long pods without tolerations of their own stay bound to a node that is NotReady."""
    extra_arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further flags per program (`kube-apiserver`, ...). If a flag is given twice, the last one counts."""

    def __post_init__(self) -> None:
        if self.node_monitor_grace_seconds < 2:
            raise ValueError(f"node_monitor_grace_seconds is {self.node_monitor_grace_seconds}, must be at least 2")
        if self.eviction_toleration_seconds < 0:
            raise ValueError(f"eviction_toleration_seconds is {self.eviction_toleration_seconds}, must not be negative")
        unknown = set(self.extra_arguments) - PROGRAMS
        if unknown:
            raise ValueError(f"extra_arguments names {', '.join(sorted(unknown))}, which is no program of localkube")


def environment() -> dict[str, str]:
    """Environment variables that the programs find in addition to this process's own.

    Go then collects garbage less often, which saves a sixth of the processor time and costs a few hundred MiB. Above the
    memory limit it collects as usual. A value that the user has set counts.
    """
    collector = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
    return {name: os.environ.get(name, value) for name, value in collector.items()}


@dataclass(frozen=True)
class ClusterLayout:
    """The files in a cluster's state folder."""

    state: Path
    sockets: Path
    """The folder of the sockets. Its path is short, for a socket's path may have 107 bytes at most."""

    @property
    def pki(self) -> Path:
        """Certificates and keys (mode 0700)."""
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.state / "logs"

    @property
    def nodes(self) -> Path:
        """One folder per process node."""
        return self.state / "nodes"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON object per line."""
        return self.logs / "audit.jsonl"

    @property
    def etcd_socket(self) -> Path:
        """A socket, not a port: etcd has no authentication here, and the folder keeps other users out."""
        return self.sockets / "etcd.sock"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of a component or of `admin`."""
        return self.state / f"{user}.kubeconfig"


def prepare(layout: ClusterLayout, authority: Authority, server_url: str) -> None:
    """Write the keys, certificates, kubeconfigs and audit policy of a new cluster.

    `layout` says where, `authority` signs the certificates, and the kubeconfigs point at `server_url`.
    """
    for folder in (layout.pki, layout.logs, layout.nodes):
        folder.mkdir(mode=0o700)
    authority.save(layout.pki)
    serving = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "127.0.0.1"]
    names = [*serving, f"kubernetes.default.svc.{CLUSTER_DOMAIN}", _FIRST_SERVICE_ADDRESS]
    authority.server("kube-apiserver", names).write(layout.pki, "apiserver")
    authority.client("kube-apiserver-kubelet-client", ["system:masters"]).write(layout.pki, "kubelet-client")
    private, public = signing_key()
    write_private(layout.pki / "service-account.key", private)
    (layout.pki / "service-account.pub").write_bytes(public)
    users = {"admin": ["system:masters"], CONTROLLER_MANAGER: [], SCHEDULER: []}
    for user, groups in users.items():
        identity = authority.client("localkube-admin" if user == "admin" else f"system:{user}", groups)
        identity.write(layout.pki, user)
        write_kubeconfig(layout.kubeconfig(user), server_url, authority.pem, identity)
    (layout.state / "audit-policy.yaml").write_text(yaml.safe_dump(_AUDIT_POLICY))


def etcd_command(binaries: Binaries, layout: ClusterLayout, options: ClusterOptions) -> list[str]:
    """Etcd on sockets, without fsync: a machine that loses power loses this cluster anyway.

    `binaries` has the program, `layout` the files; the flags in `options` come last. The other programs take the same.
    """
    # A lone member never dials what it advertises, and etcd insists on host:port there.
    advertised = "http://localhost:1"
    flags = [
        f"--data-dir={layout.state / 'etcd'}",
        f"--listen-client-urls=unix://{layout.etcd_socket}",
        f"--listen-peer-urls=unix://{layout.sockets / 'etcd-peer.sock'}",
        f"--advertise-client-urls={advertised}",
        f"--initial-advertise-peer-urls={advertised}",
        f"--initial-cluster=default={advertised}",
        "--unsafe-no-fsync",
        "--snapshot-count=10000",
        "--log-level=warn",
    ]
    return [str(binaries.etcd), *flags, *options.extra_arguments.get(ETCD, ())]


def apiserver_command(binaries: Binaries, layout: ClusterLayout, options: ClusterOptions, *, port: int) -> list[str]:
    """The API server on a loopback port, with node authorizer, RBAC, bound tokens and an audit log.

    It serves on `port`; the other parameters are those of `etcd_command`.
    """
    pki, toleration = layout.pki, options.eviction_toleration_seconds
    flags = [
        f"--etcd-servers=unix://{layout.etcd_socket}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        # A socket of the supervisor keeps the port reserved; only programs of this user may share it.
        "--permit-port-sharing=true",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={_SERVICE_RANGE}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
        f"--service-account-key-file={pki / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--default-not-ready-toleration-seconds={toleration}",
        f"--default-unreachable-toleration-seconds={toleration}",
        "--allow-privileged=true",
        f"--audit-policy-file={layout.state / 'audit-policy.yaml'}",
        f"--audit-log-path={layout.audit_log}",
        f"--audit-log-maxsize={_AUDIT_MEGABYTES}",
        "--profiling=false",
    ]
    return [str(binaries.apiserver), *flags, *options.extra_arguments.get(APISERVER, ())]


def controller_manager_command(binaries: Binaries, layout: ClusterLayout, options: ClusterOptions) -> list[str]:
    """The controller manager: each loop has a user of its own, and a dead node is noticed early.

    The parameters are those of `etcd_command`.
    """
    flags = [
        f"--kubeconfig={layout.kubeconfig(CONTROLLER_MANAGER)}",
        "--leader-elect=false",
        "--secure-port=0",
        "--use-service-account-credentials=true",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        f"--service-account-private-key-file={layout.pki / 'service-account.key'}",
        f"--node-monitor-grace-period={options.node_monitor_grace_seconds}s",
        "--node-monitor-period=1s",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        f"--controllers=*,{','.join(f'-{name}' for name in _UNUSED_LOOPS)}",
        "--profiling=false",
    ]
    return [str(binaries.controller_manager), *flags, *options.extra_arguments.get(CONTROLLER_MANAGER, ())]


def scheduler_command(binaries: Binaries, layout: ClusterLayout, options: ClusterOptions) -> list[str]:
    """The scheduler with its default profile. The parameters are those of `etcd_command`."""
    flags = [
        f"--kubeconfig={layout.kubeconfig(SCHEDULER)}",
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
    ]
    return [str(binaries.scheduler), *flags, *options.extra_arguments.get(SCHEDULER, ())]


# The log has all requests of users, reads too. It leaves out the control plane's own reads and heartbeats.
_AUDIT_POLICY: Mapping[str, object] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "nonResourceURLs": ["/healthz*", "/readyz*", "/livez*", "/version"]},
        {
            "level": "None",
            "users": ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"],
            "verbs": ["get", "list", "watch"],
        },
        {
            "level": "None",
            "userGroups": ["system:serviceaccounts:kube-system"],
            "verbs": ["get", "list", "watch"],
        },
        {
            "level": "None",
            "userGroups": ["system:nodes"],
            "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
        },
        {"level": "Metadata"},
    ],
}
