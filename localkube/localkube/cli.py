"""The command line: `python -m localkube up|down|status|kubeconfig|kubectl|node|build`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from localkube import registry
from localkube.binaries import control_plane, helm
from localkube.cluster import Cluster
from localkube.components import ClusterOptions
from localkube.errors import ClusterNameError, LocalkubeError
from localkube.nodes import NodeOptions
from localkube.progress import to_stderr

DEFAULT_NAME = "default"
_FAILURE = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 1 with one line on stderr if localkube refused."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    try:
        return int(options.run(options))
    except (LocalkubeError, ValueError) as error:
        print(f"localkube: {error}", file=sys.stderr)
        return _FAILURE
    except KeyboardInterrupt:
        print("localkube: interrupted; nothing is left behind", file=sys.stderr)
        return 130


def _up(options: argparse.Namespace) -> int:
    choices = ClusterOptions(node_monitor_grace_seconds=options.node_grace_seconds)
    progress = to_stderr()
    cluster = Cluster(options.name, options=choices, progress=progress)
    cluster.start()
    try:
        cluster.add_nodes([f"node-{index}" for index in range(1, options.nodes + 1)])
        cluster.detach()
    except BaseException:
        cluster.stop()
        raise
    progress(f"cluster {options.name!r} is up; export KUBECONFIG={cluster.kubeconfig}")
    return 0


def _down(options: argparse.Namespace) -> int:
    names = [entry.name for entry in registry.running()] if options.all else [options.name]
    swept = registry.sweep()
    for name in names:
        if name in swept:
            continue
        Cluster.attach(name).stop()
        print(f"cluster {name!r} is down", file=sys.stderr)
    return 0


def _status(options: argparse.Namespace) -> int:
    """Print the running clusters and their processes; exit code 1 if the one asked for has a dead process."""
    entries = [registry.find(options.name)] if options.name else registry.running()
    described: dict[str, dict[str, Any]] = {}
    for entry in entries:
        processes = Cluster.attach(entry.name).processes()
        described[entry.name] = {**entry.read(), "processes": {n: vars(state) for n, state in processes.items()}}
    if options.json:
        print(json.dumps(described, indent=2))
    else:
        _print_status(described)
    dead = any(p["exit_code"] is not None for c in described.values() for p in c["processes"].values())
    return _FAILURE if options.name and dead else 0


def _print_status(described: dict[str, dict[str, Any]]) -> None:
    if not described:
        print("no cluster is running")
    for name, cluster in described.items():
        print(f"{name}  {cluster['server_url']}  {cluster['kubeconfig']}")
        for process, state in cluster["processes"].items():
            condition = "running" if state["exit_code"] is None else f"ended with {state['exit_code']}"
            print(f"  {process:<26} {state['pid']:>8}  {condition}")


def _kubeconfig(options: argparse.Namespace) -> int:
    cluster = Cluster.attach(options.name)
    print(cluster.kubeconfig.read_text() if options.content else cluster.kubeconfig)
    return 0


def _kubectl(options: argparse.Namespace) -> int:
    program, *given = Cluster.attach(options.name).kubectl_command()
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    os.execv(program, ["kubectl", *given, *arguments])  # noqa: S606 - a shell would split arguments


def _build(options: argparse.Namespace) -> int:
    progress = to_stderr()
    print(control_plane(progress).kubectl.parent)
    if options.helm:
        print(helm(progress))
    return 0


def _node_list(options: argparse.Namespace) -> int:
    for name, state in Cluster.attach(options.name).nodes.processes().items():
        print(f"{name}  {state.pid}  {'running' if state.exit_code is None else f'ended with {state.exit_code}'}")
    return 0


def _node_add(options: argparse.Namespace) -> int:
    labels = dict(_label(text) for text in options.label)
    Cluster.attach(options.name).add_node(options.node, NodeOptions(labels=labels))
    return 0


def _node_kill(options: argparse.Namespace) -> int:
    Cluster.attach(options.name).nodes.kill(options.node)
    return 0


def _node_stop(options: argparse.Namespace) -> int:
    Cluster.attach(options.name).nodes.stop(options.node)
    return 0


def _node_restart(options: argparse.Namespace) -> int:
    Cluster.attach(options.name).nodes.restart(options.node)
    return 0


def _node_taint(options: argparse.Namespace) -> int:
    """`taint` sets, `untaint` removes; both take taints as kubectl writes them (key=value:Effect)."""
    remove = options.verb == "untaint"
    taints = [f"{taint}-" if remove else taint for taint in options.taints]
    extra = [] if remove else ["--overwrite"]
    done = Cluster.attach(options.name).kubectl("taint", "node", options.node, *taints, *extra, check=False)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ClusterNameError(f"--label {text!r}: must be KEY=VALUE")
    return key, value


def _parser() -> argparse.ArgumentParser:
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default=DEFAULT_NAME, help="the cluster's name (default: %(default)s)")
    parser = argparse.ArgumentParser(prog="python -m localkube", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    up = verbs.add_parser("up", parents=[named], help="start a cluster that lives until `down`")
    up.add_argument("--nodes", type=int, default=0, help="process nodes to start (default: %(default)s)")
    up.add_argument("--node-grace-seconds", type=int, default=ClusterOptions.node_monitor_grace_seconds)
    up.set_defaults(run=_up)
    down = verbs.add_parser("down", parents=[named], help="end a cluster and remove all of its files")
    down.add_argument("--all", action="store_true", help="every cluster of this user")
    down.set_defaults(run=_down)
    status = verbs.add_parser("status", help="list running clusters and their processes")
    status.add_argument("--name", help="only this one; exit code 1 if one of its processes is dead")
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)
    kubeconfig = verbs.add_parser("kubeconfig", parents=[named], help="print the administrator's kubeconfig path")
    kubeconfig.add_argument("--content", action="store_true", help="print the file itself")
    kubeconfig.set_defaults(run=_kubeconfig)
    kubectl = verbs.add_parser("kubectl", parents=[named], help="run kubectl as the administrator")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- ARGUMENTS")
    kubectl.set_defaults(run=_kubectl)
    build = verbs.add_parser("build", help="only build the programs, or find them in the cache")
    build.add_argument("--helm", action="store_true", help="helm, too")
    build.set_defaults(run=_build)
    _add_node_verbs(verbs.add_parser("node", help="process nodes of a cluster"), named)
    return parser


def _add_node_verbs(parser: argparse.ArgumentParser, named: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    verbs.add_parser("list", parents=[named], help="the nodes' processes").set_defaults(run=_node_list)
    described = {
        "add": (_node_add, "start a node and wait until it is Ready"),
        "kill": (_node_kill, "node death: SIGKILL to the node and all that runs on it"),
        "stop": (_node_stop, "end a node's process in order"),
        "restart": (_node_restart, "power-cycle a node"),
        "taint": (_node_taint, "set taints (key=value:Effect)"),
        "untaint": (_node_taint, "remove taints (key=value:Effect, key:Effect or key)"),
    }
    for verb, (run, text) in described.items():
        one = verbs.add_parser(verb, parents=[named], help=text)
        one.add_argument("node", metavar="NODE")
        one.set_defaults(run=run)
        if verb == "add":
            one.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
        if run is _node_taint:
            one.add_argument("taints", nargs="+", metavar="TAINT")
