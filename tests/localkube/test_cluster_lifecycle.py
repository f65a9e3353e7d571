"""A cluster starts, serves, and leaves nothing behind, however its owner ends."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from localkube import registry
from localkube.binaries import ASSETS_VARIABLE, control_plane
from localkube.cluster import Cluster
from localkube.components import APISERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER, ClusterOptions, environment
from localkube.control import ProcessSpec
from localkube.errors import BinariesError, ClusterNameError, LocalkubeError, StartError
from tests.support.polling import until

START_SECONDS = 60.0
GONE_SECONDS = 15.0
COMPONENTS = {ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER}

OWNER = """
import json, sys, time
from localkube.cluster import Cluster
with Cluster() as cluster:
    print(json.dumps({"name": cluster.name, "state": str(cluster.layout.state)}), flush=True)
    time.sleep(1000)
"""


def processes_mentioning(*texts: str) -> list[str]:
    """Command lines of processes that name any of the texts, this process excepted."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if process.info["pid"] != os.getpid() and any(text in line for text in texts):
            found.append(line)
    return found


def assert_gone(name: str, state: Path) -> None:
    until(lambda: not processes_mentioning(str(state), name), seconds=GONE_SECONDS, what=f"no process of {name}")
    until(lambda: not state.exists(), seconds=GONE_SECONDS, what=f"{state} removed")
    assert not registry.RegistryEntry(name).folder.exists()
    assert name not in [entry.name for entry in registry.running()]


def port_of(cluster: Cluster) -> int:
    port = urlsplit(cluster.server_url).port
    assert port is not None
    return port


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_a_stopped_cluster_leaves_no_process_file_or_open_port(tmp_path: Path) -> None:
    wanted = tmp_path / "state"
    with Cluster(state_dir=wanted) as cluster:
        state, port = cluster.layout.state, port_of(cluster)
        assert state == wanted
        assert set(cluster.processes()) == COMPONENTS
        assert len(processes_mentioning(str(state), cluster.name)) == len(COMPONENTS) + 1
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    assert_gone(cluster.name, state)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    cluster.stop()


def test_the_cluster_ends_with_its_owner(owner: subprocess.Popen[str]) -> None:
    """By a signal that Python does not turn into an exception; other ends are those of whole runs and commands."""
    assert owner.stdout is not None
    started = json.loads(owner.stdout.readline())
    assert processes_mentioning(started["state"])
    owner.terminate()
    owner.wait(timeout=GONE_SECONDS)
    assert_gone(started["name"], Path(started["state"]))


def test_a_killed_supervisor_takes_its_processes_along_and_the_next_start_removes_its_files(
    owner: subprocess.Popen[str],
) -> None:
    assert owner.stdout is not None
    started = json.loads(owner.stdout.readline())
    state = Path(started["state"])
    supervisor = next(
        process for process in psutil.Process(owner.pid).children() if "localkube.supervisor" in process.cmdline()
    )
    owner.kill()
    supervisor.kill()
    until(lambda: not processes_mentioning(str(state)), seconds=GONE_SECONDS, what="processes ended")
    registry.sweep()
    assert_gone(started["name"], state)


def test_a_cluster_whose_files_were_taken_away_ends(owner: subprocess.Popen[str], tmp_path: Path) -> None:
    assert owner.stdout is not None
    started = json.loads(owner.stdout.readline())
    state = Path(started["state"])
    assert processes_mentioning(str(state))
    state.rename(tmp_path / "elsewhere")
    assert_gone(started["name"], state)


def test_a_component_that_cannot_start_is_an_error_with_its_log_and_leaves_nothing() -> None:
    cluster = Cluster(options=ClusterOptions(extra_arguments={APISERVER: ["--no-such-flag=1"]}))
    with pytest.raises(StartError, match=r"(?s)kube-apiserver ended with 1 .*unknown flag: --no-such-flag"):
        cluster.start()
    assert not processes_mentioning(cluster.name)
    assert not registry.RegistryEntry(cluster.name).folder.exists()


def test_two_clusters_side_by_side_and_binaries_of_the_users_choice(
    own: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = control_plane()
    for name, path in vars(real).items():
        file = {"apiserver": "kube-apiserver", "controller_manager": CONTROLLER_MANAGER, "scheduler": SCHEDULER}
        (tmp_path / file.get(name, name)).symlink_to(path)
    monkeypatch.setenv(ASSETS_VARIABLE, str(tmp_path))
    with Cluster() as other:
        assert port_of(other) != port_of(own)
        for state in other.processes().values():
            assert psutil.Process(state.pid).cmdline()[0].startswith(str(tmp_path))
        own.kubectl("create", "configmap", "only-here")
        assert "only-here" in own.kubectl("get", "configmaps", "-o", "name").stdout
        assert "only-here" not in other.kubectl("get", "configmaps", "-o", "name").stdout


def test_a_folder_of_binaries_that_lacks_some_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etcd").symlink_to(control_plane().etcd)
    (tmp_path / "kubectl").write_text("not executable")
    monkeypatch.setenv(ASSETS_VARIABLE, str(tmp_path))
    with pytest.raises(BinariesError, match="holds no executable kube-apiserver, kubectl;"):
        Cluster().start()


def test_the_api_server_restarts_on_its_port_with_its_data(own: Cluster) -> None:
    own.kubectl("create", "configmap", "survivor", "--from-literal=a=b")
    url, before = own.server_url, own.processes()[APISERVER].pid
    own.kill_apiserver()
    assert own.kubectl("get", "configmap", "survivor", check=False).returncode != 0
    own.restart_apiserver()
    assert own.processes()[APISERVER].pid != before
    assert own.server_url == url
    assert own.kubectl("get", "configmap", "survivor", "-o", "jsonpath={.data.a}").stdout == "b"


def test_go_collects_less_often_in_every_program_unless_the_user_says_otherwise(
    own: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in COMPONENTS:
        found = psutil.Process(own.processes()[name].pid).environ()
        assert environment().items() <= found.items()
    monkeypatch.delenv("GOMEMLIMIT", raising=False)
    monkeypatch.setenv("GOGC", "50")
    assert environment() == {"GOGC": "50", "GOMEMLIMIT": "1GiB"}


def test_credentials_are_private_and_are_who_they_say(own: Cluster) -> None:
    node = own.node_kubeconfig("node-7")
    secrets = [own.kubeconfig, node, *own.layout.pki.glob("*.key")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert stat.S_IMODE(own.layout.state.stat().st_mode) == 0o700
    asked = own.kubectl(f"--kubeconfig={node}", "auth", "whoami", "-o", "json").stdout
    user = json.loads(asked)["status"]["userInfo"]
    assert user["username"] == "system:node:node-7"
    assert "system:nodes" in user["groups"]
    refused = own.kubectl(f"--kubeconfig={node}", "get", "secrets", check=False)
    assert "Forbidden" in refused.stderr


def test_reads_and_writes_of_users_are_in_the_audit_log(own: Cluster) -> None:
    own.kubectl("create", "configmap", "audited")
    own.kubectl("get", "configmap", "audited")

    def verbs() -> set[str]:
        events = [json.loads(line) for line in own.audit_log.read_text().splitlines()]
        objects = [(event["verb"], event.get("objectRef", {}).get("name", "")) for event in events]
        return {verb for verb, name in objects if name == "audited"}

    until(lambda: verbs() >= {"create", "get"}, seconds=5, what="both requests in the audit log")


def test_a_node_takes_along_processes_that_left_its_group(own: Cluster) -> None:
    marker = f"86{os.getpid()}"
    script = f"(setsid sleep {marker} &) ; setsid sleep {marker} & exec sleep {marker}"
    own.control.start(ProcessSpec("escapist", ["sh", "-c", script], own.layout.logs / "escapist.log", role="node"))
    until(lambda: processes_mentioning(marker) == [f"sleep {marker}"] * 3, seconds=5, what="the node and its children")
    own.nodes.kill("escapist")
    assert not processes_mentioning(marker)


def test_a_name_is_used_once_and_must_be_well_formed(own: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ClusterNameError, match="running already"):
        Cluster(own.name).start()
    with pytest.raises(ClusterNameError, match="lower-case letters"):
        Cluster("Not/A/Name").start()
    with pytest.raises(ClusterNameError, match=f"no cluster named 'absent' is running.*{own.name}"):
        Cluster.attach("absent")
    (tmp_path / "precious").touch()
    with pytest.raises(LocalkubeError, match="is not empty"):
        Cluster(state_dir=tmp_path).start()
    assert (tmp_path / "precious").exists()


def test_a_cluster_of_the_command_line_outlives_it_until_down() -> None:
    name = f"cli-{os.getpid()}"

    def localkube(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "localkube", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=START_SECONDS)

    try:
        up = localkube("up", "--name", name)
        assert up.returncode == 0, up.stderr
        state = Path(localkube("kubeconfig", "--name", name).stdout.strip()).parent
        status = json.loads(localkube("status", "--name", name, "--json").stdout)
        assert set(status[name]["processes"]) == COMPONENTS
        got = localkube("kubectl", "--name", name, "--", "get", "--raw", "/readyz")
        assert got.stdout == "ok"
    finally:
        down = localkube("down", "--name", name)
    assert down.returncode == 0
    assert_gone(name, state)
    again = localkube("down", "--name", name)
    assert again.returncode == 1
    assert "no cluster named" in again.stderr
