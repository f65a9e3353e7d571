"""The command line: what each verb does to a real cluster, and what it says about wrong words."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from localkube import registry
from localkube.cli import main
from localkube.cluster import Cluster

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(own: Cluster, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, standard output and standard error of a command on the cluster."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([*words, "--name", own.name])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["up", "--nodes", "-3"], "argument --nodes: '-3' is not a whole number of at least 0"),
        (["up", "--nodes", "two"], "argument --nodes: 'two' is not a whole number of at least 0"),
        (["up", "--node-grace-seconds", "1"], "'1' is not a whole number of at least 2"),
        (["node", "add", "Upper"], "node name 'Upper': must be at most 63 lower-case letters, digits and inner dashes"),
        (["node", "add", "../x"], "node name '../x': must be at most 63"),
        (["node", "add", "n" * 64], "must be at most 63"),
        (["node", "add", "etcd"], "node name 'etcd': that is a program of the control plane"),
        (["node", "add", "n", "--label", "pool"], "--label 'pool': must be KEY=VALUE"),
        (["node", "add", "n", "--image", "team/*"], "--image 'team/*': must be PATTERN=FOLDER"),
        (["node", "add", "n", "--entrypoint", "=run"], "--entrypoint '=run': must be NAME=COMMAND"),
        (["node", "kill", "absent"], "no process node named 'absent' (there are: none)"),
        (["node", "stop", "etcd"], "no process node named 'etcd'"),
        (["node", "restart", "absent"], "no process node named 'absent'"),
        (["node", "taint", "n", "gone"], "taint 'gone': must be KEY[=VALUE]:EFFECT, and EFFECT one of NoSchedule"),
        (["node", "taint", "n", "a=b:No"], "taint 'a=b:No': must be KEY[=VALUE]:EFFECT"),
        (["node", "untaint", "n", "a:No"], "taint 'a:No': must be KEY[=VALUE][:EFFECT]"),
        (["node", "taint", "absent", "a:NoSchedule"], 'nodes "absent" not found'),
        (["node", "explode"], "argument VERB: invalid choice: 'explode'"),
    ],
)
def test_wrong_words_are_named_and_change_nothing(run: Run, own: Cluster, words: list[str], message: str) -> None:
    before = own.processes().keys()
    code, _, said = run(*words)
    assert code != 0
    assert message in said
    assert "Traceback" not in said
    assert own.processes().keys() == before
    assert list(own.layout.nodes.iterdir()) == []


def test_a_node_that_the_api_server_refuses_is_an_error_of_one_line_and_is_forgotten(run: Run, own: Cluster) -> None:
    code, _, said = run("node", "add", "refused", "--label", "a b=c")
    assert code == 1
    assert "node refused: 422 Invalid" in said
    assert "Traceback" not in said
    assert "refused" not in own.processes()
    assert list(own.layout.nodes.iterdir()) == []


def test_the_verbs_of_a_node(run: Run, own: Cluster) -> None:
    def taints() -> list[str]:
        node = json.loads(own.kubectl("get", "node", "n", "-o", "json").stdout)
        return [taint["key"] for taint in node["spec"].get("taints", []) if not taint["key"].startswith("node.")]

    assert run("node", "list") == (0, f"cluster {own.name!r} has no process node\n", "")
    assert run("node", "add", "n", "--label", "pool=a") == (0, "", "node n is Ready\n")
    assert own.kubectl("get", "nodes", "-l", "pool=a", "-o", "name").stdout == "node/n\n"
    pid = own.processes()["n"].pid
    assert run("node", "list")[1] == f"n  {pid}  running\n"
    assert run("node", "add", "n") == (1, "", f"localkube: start n: it is running already, as process {pid}\n")

    assert run("node", "taint", "n", "sick=yes:NoSchedule", "old:NoExecute")[0] == 0
    assert sorted(taints()) == ["old", "sick"]
    assert run("node", "untaint", "n", "sick", "old:NoExecute")[0] == 0
    assert taints() == []

    assert run("node", "kill", "n") == (0, "", "node n is dead; its Node object stays\n")
    assert not psutil.pid_exists(pid)
    dead = "localkube: node n is dead already: its process was ended by SIGKILL\n"
    assert run("node", "kill", "n") == (1, "", dead)
    code, said, _ = run("status")
    assert code == 1
    assert f"{pid}  was ended by SIGKILL" in said

    assert run("node", "restart", "n") == (0, "", "node n starts again\n")
    assert psutil.pid_exists(own.processes()["n"].pid)
    assert run("node", "stop", "n") == (0, "", "node n has ended; its Node object stays\n")
    assert run("node", "restart", "n")[0] == 1, "its credentials are gone"
    assert list(own.layout.nodes.iterdir()) == []
    assert run("node", "add", "n")[0] == 0
    assert run("node", "stop", "n")[0] == 0


@pytest.mark.parametrize(
    ("module", "absent"), [("localkube.cli", {"kubernetes", "aiohttp"}), ("localkube.node.program", {"kubernetes"})]
)
def test_what_must_start_quickly_does_not_load_large_libraries(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*{absent} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_a_cluster_that_is_being_started_does_not_hide_the_others(
    own: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"starting-{os.getpid()}"
    entry, lock = registry.claim(name)
    try:
        assert main(["status"]) == 0
        said = capsys.readouterr().out
        assert f"{name}  is still being started\n" in said
        assert f"{own.name}  {own.server_url}  {own.kubeconfig}\n" in said
        assert main(["down", "--name", name]) == 1
        assert f"cluster {name!r} is still being started" in capsys.readouterr().err
    finally:
        entry.remove()
        os.close(lock)
