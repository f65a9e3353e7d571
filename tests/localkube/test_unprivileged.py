"""A cluster with a node and a pod belongs to a user without any rights: nothing of it needs root."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from localkube.binaries import ASSETS_VARIABLE, control_plane
from localkube.pod_processes import find

REPOSITORY = Path(__file__).parents[2]
UID = 54321
"""Not nobody's: within a user namespace that is also whoever is not in it."""
COMMAND_SECONDS = 90
AUDIENCE = "localkube-test"

# The first things that a container does; Debian's and Ubuntu's limits show at the second.
TRIAL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x20000) < 0 or libc.mount(b"none", b"/", b"", ctypes.c_ulong(0x4000 | 1 << 18), b"") < 0:
    sys.exit("refused: " + os.strerror(ctypes.get_errno()))
"""

SCRIPT = """
set -e
echo "$$$$ $(id -u) $(cat /conf/k) $(hostname)"
cat /tok/token > /data/token
! touch /conf/x 2>/dev/null
touch /var/run/localkube-test/f /e/up
exec python3 -m http.server 8123 --bind $IP --directory /e
"""


class User:
    """Runs commands as a user who is not root: another one, or the one who runs the tests."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.uid = os.getuid() or UID
        assets = control_plane().kubectl.parent
        own = {
            "HOME": str(home),
            "TMPDIR": str(home),
            "XDG_RUNTIME_DIR": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
        }
        # Where this process found its programs, as a user's cache would have them.
        self.environment = {**os.environ, **own, ASSETS_VARIABLE: str(assets)}
        folders = {Path(sys.prefix), Path(sys.base_prefix), REPOSITORY, assets}
        self.prefix: list[str] = []
        if os.getuid() == 0:
            try:
                os.chown(home, UID, UID)
            except OSError as problem:
                pytest.skip(f"root of this user namespace cannot become user {UID}: {problem.strerror}")
            launcher = str(Path(__file__).with_name("as_user.py"))
            self.prefix = [sys.executable, launcher, str(UID), *sorted(str(folder) for folder in folders), "--"]

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self.prefix, *command], env=self.environment, input=stdin, capture_output=True,
                              text=True, timeout=COMMAND_SECONDS, cwd=self.home, check=False)  # fmt: skip

    def localkube(self, *words: str, stdin: str = "") -> str:
        done = self.run(sys.executable, "-m", "localkube", *words, stdin=stdin)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def kubectl(self, *words: str, stdin: str = "") -> str:
        return self.localkube("kubectl", "--", *words, stdin=stdin)


@pytest.fixture
def user() -> Iterator[User]:
    home = Path(tempfile.mkdtemp(prefix="lk-"))
    try:
        this = User(home)
        trial = this.run(sys.executable, "-c", TRIAL)
        if trial.stderr.startswith("refused: "):
            pytest.skip(f"this machine forbids user namespaces to user {this.uid}: {trial.stderr.strip()}")
        assert trial.returncode == 0, trial.stderr
        yield this
        this.run(sys.executable, "-m", "localkube", "down", "--all")
    finally:
        shutil.rmtree(home)


def pod(data: Path) -> dict[str, Any]:
    token = {"serviceAccountToken": {"path": "token", "audience": AUDIENCE, "expirationSeconds": 600}}
    volumes = [
        {"name": "conf", "configMap": {"name": "c"}},
        {"name": "tok", "projected": {"sources": [token]}},
        {"name": "data", "hostPath": {"path": str(data), "type": "DirectoryOrCreate"}},
        {"name": "e", "emptyDir": {}},
    ]
    mounts = [
        {"name": "conf", "mountPath": "/conf", "readOnly": True},
        {"name": "tok", "mountPath": "/tok"},
        {"name": "data", "mountPath": "/data"},
        {"name": "e", "mountPath": "/e"},
        {"name": "e", "mountPath": "/var/run/localkube-test", "subPath": "sub"},
    ]
    fields = {"IP": "status.podIP", "POD_UID": "metadata.uid"}
    container = {
        "name": "main",
        "image": "localkube/host",
        "command": ["sh", "-c", SCRIPT],
        "env": [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()],
        "volumeMounts": mounts,
        "startupProbe": {"exec": {"command": ["test", "-e", "/e/up"]}, "periodSeconds": 1},
        "readinessProbe": {"httpGet": {"path": "/", "port": 8123}, "periodSeconds": 1},
        "livenessProbe": {"tcpSocket": {"port": 8123}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def mounts_in(place: Path) -> dict[str, Any]:
    """A pod that mounts something at a path of the host."""
    mounts = [{"name": "e", "mountPath": str(place)}]
    container = {"name": "main", "image": "localkube/host", "command": ["true"], "volumeMounts": mounts}
    spec = {"containers": [container], "volumes": [{"name": "e", "emptyDir": {}}], "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q"}, "spec": spec}


def effective_capabilities(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("CapEff:")), 16)


def test_a_user_without_rights_runs_a_cluster_with_a_node_and_a_pod(user: User, tmp_path: Path) -> None:
    user.localkube("up")
    user.localkube("node", "add", "mine", "--label", "pool=a")
    status = json.loads(user.localkube("status", "--json"))["default"]
    for process in status["processes"].values():
        assert psutil.Process(process["pid"]).uids() == (user.uid,) * 3
        assert effective_capabilities(process["pid"]) == 0
    assert user.kubectl("get", "nodes", "-l", "pool=a", "-o", "name") == "node/mine\n"

    user.kubectl("create", "configmap", "c", "--from-literal=k=conf")
    data = user.home / "data"
    user.kubectl("apply", "-f", "-", stdin=json.dumps(pod(data)))
    user.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=60s")
    assert user.kubectl("logs", "p").splitlines()[0] == f"1 {user.uid} conf p"
    uid = user.kubectl("get", "pod", "p", "-o", "jsonpath={.metadata.uid}")
    assert {one.process.uids().real for one in find({"POD_UID": uid})} == {user.uid}
    assert (data / "token").stat().st_uid == user.uid
    assert review(user, (data / "token").read_text(), AUDIENCE)["authenticated"]
    assert not review(user, (data / "token").read_text(), "another").get("authenticated")

    if os.getuid() == 0:
        tmp_path.chmod(0o700)
        user.kubectl("apply", "-f", "-", stdin=json.dumps(mounts_in(tmp_path / "inside")))
        user.kubectl("wait", "pod/q", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s")
        ended = user.kubectl(
            "get", "pod", "q", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.message}"
        )
        assert "is closed to this user, so nothing can be mounted in it" in ended

    state = Path(status["state_dir"])
    user.localkube("down")
    assert find({"POD_UID": uid}) == []
    assert not state.exists()
    assert str(user.home) not in Path("/proc/self/mountinfo").read_text()
    assert not Path("/var/run/localkube-test").exists()
    left = {path.name for path in user.home.iterdir()}
    assert left == {"data", f"localkube-{user.uid}"}
    assert list((user.home / f"localkube-{user.uid}").iterdir()) == []


def review(user: User, token: str, audience: str) -> dict[str, Any]:
    asked = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [audience]},
    }
    answer = user.kubectl("create", "-o", "json", "-f", "-", stdin=json.dumps(asked))
    return dict(json.loads(answer)["status"])
