"""Finds the programs of a control plane: those of a folder that the user names, else our own build, which is cached."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from localkube.build import Recipe, built
from localkube.errors import BinariesError
from localkube.paths import CONTROL_PLANE_MODULE, HELM_MODULE
from localkube.progress import Progress, silent

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
KUBERNETES_VERSION = "v1.36.3"
HELM_VERSION = "v4.3.1"

REQUIRED_ASSETS = ("etcd", "kube-apiserver", "kubectl")
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")

_MAJOR, _MINOR, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
# Without a version linked in, clients cannot parse what the server says about itself.
_CONTROL_PLANE = Recipe(
    title="control plane",
    module=CONTROL_PLANE_MODULE,
    package=".",
    ldflags=(
        "-s",
        "-w",
        f"-X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
        f"-X k8s.io/component-base/version.gitMajor={_MAJOR}",
        f"-X k8s.io/component-base/version.gitMinor={_MINOR}",
    ),
    binary="controlplane",
    links=(*REQUIRED_ASSETS, *CONTROLLERS),
)
_HELM = Recipe(
    title="helm",
    module=HELM_MODULE,
    package="helm.sh/helm/v4/cmd/helm",
    ldflags=("-s", "-w", f"-X helm.sh/helm/v4/internal/version.version={HELM_VERSION}"),
    binary="helm",
)


@dataclass(frozen=True)
class Binaries:
    """Paths of the five programs of a control plane."""

    etcd: Path
    apiserver: Path
    controller_manager: Path
    scheduler: Path
    kubectl: Path


def control_plane(progress: Progress = silent) -> Binaries:
    """Find the control plane's programs, and build them if they are not in the cache.

    If KUBEBUILDER_ASSETS names a folder, that folder must hold etcd, kube-apiserver and kubectl. Such folders often lack
    the controller manager and the scheduler; these two then come from our own build. Raises BinariesError with the names
    of the missing programs.
    """
    assets = os.environ.get(ASSETS_VARIABLE)
    if not assets:
        return _in_folders(built(_CONTROL_PLANE, progress))
    folder = Path(assets)
    missing = [name for name in REQUIRED_ASSETS if not os.access(folder / name, os.X_OK)]
    if missing:
        raise BinariesError(
            f"{ASSETS_VARIABLE}={assets} holds no executable {', '.join(missing)}; "
            f"it must hold {', '.join(REQUIRED_ASSETS)} (unset the variable to use localkube's own build)"
        )
    if all(os.access(folder / name, os.X_OK) for name in CONTROLLERS):
        return _in_folders(folder)
    progress(f"{assets} has no {' or '.join(CONTROLLERS)}: using localkube's own build of both")
    return _in_folders(folder, controllers=built(_CONTROL_PLANE, progress))


def helm(progress: Progress = silent) -> Path:
    """Path of the helm program; builds it if it is not in the cache. Raises BinariesError."""
    return built(_HELM, progress) / "helm"


def _in_folders(folder: Path, controllers: Path | None = None) -> Binaries:
    manager, scheduler = ((controllers or folder) / name for name in CONTROLLERS)
    return Binaries(
        etcd=folder / "etcd",
        apiserver=folder / "kube-apiserver",
        controller_manager=manager,
        scheduler=scheduler,
        kubectl=folder / "kubectl",
    )
