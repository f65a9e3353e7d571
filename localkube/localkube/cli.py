"""The command line: `python -m localkube up|down|status|kubeconfig|kubectl|node|build`."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localkube import registry
from localkube.binaries import control_plane, helm
from localkube.cluster import Cluster
from localkube.components import ClusterOptions
from localkube.errors import LocalkubeError, NodeNameError
from localkube.nodes import NodeOptions
from localkube.progress import to_stderr

DEFAULT_NAME = "default"
_FAILURE = 1
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_EFFECT = f":({'|'.join(EFFECTS)})"
_TAINT = re.compile(rf"[^=:,\s]+(=[^=:,\s]*)?{_EFFECT}")
_TAINT_TO_REMOVE = re.compile(rf"[^=:,\s]+(=[^=:,\s]*)?({_EFFECT})?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 1 with one line on stderr if localkube refuses."""
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
        cluster.add_nodes([f"node-{index}" for index in range(1, options.nodes + 1)], _node_options(options))
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
    """Print the running clusters and their processes. The exit code is 1 if the named one has a dead process."""
    entries = [registry.find(options.name)] if options.name else registry.running()
    described: dict[str, dict[str, Any]] = {}
    for entry in entries:
        record = entry.read()
        processes = Cluster.attach(entry.name).processes() if "server_url" in record else {}
        described[entry.name] = {**record, "processes": {n: vars(state) for n, state in processes.items()}}
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
        print(
            f"{name}  {cluster.get('server_url', 'is still being started')}  {cluster.get('kubeconfig', '')}".rstrip()
        )
        for process, state in cluster["processes"].items():
            print(f"  {process:<26} {state['pid']:>8}  {_condition(state['exit_code'])}")


def _kubeconfig(options: argparse.Namespace) -> int:
    cluster = Cluster.attach(options.name)
    print(cluster.kubeconfig.read_text() if options.content else cluster.kubeconfig)
    return 0


def _kubectl(options: argparse.Namespace) -> int:
    program, *given = Cluster.attach(options.name).kubectl_command()
    arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    os.execv(program, ["kubectl", *given, *arguments])  # noqa: S606 - a shell would split the arguments


def _build(options: argparse.Namespace) -> int:
    progress = to_stderr()
    print(control_plane(progress).kubectl.parent)
    if options.helm:
        print(helm(progress))
    return 0


def _node_list(options: argparse.Namespace) -> int:
    nodes = Cluster.attach(options.name).nodes.processes()
    if not nodes:
        print(f"cluster {options.name!r} has no process node")
    for name, state in nodes.items():
        print(f"{name}  {state.pid}  {_condition(state.exit_code)}")
    return 0


def _node_add(options: argparse.Namespace) -> int:
    Cluster.attach(options.name).add_node(options.node, _node_options(options))
    return _say(f"node {options.node} is Ready")


def _node_kill(options: argparse.Namespace) -> int:
    nodes = Cluster.attach(options.name).nodes
    state = nodes.processes().get(options.node)
    if state is not None and state.exit_code is not None:
        raise NodeNameError(f"node {options.node} is dead already: its process {_condition(state.exit_code)}")
    nodes.kill(options.node)
    return _say(f"node {options.node} is dead; its Node object stays")


def _node_stop(options: argparse.Namespace) -> int:
    Cluster.attach(options.name).nodes.stop(options.node)
    return _say(f"node {options.node} has ended; its Node object stays")


def _node_restart(options: argparse.Namespace) -> int:
    Cluster.attach(options.name).nodes.restart(options.node)
    return _say(f"node {options.node} starts again")


def _node_taint(options: argparse.Namespace) -> int:
    """Set taints (`taint`) or remove them (`untaint`), written as kubectl takes them (key=value:Effect)."""
    remove = options.verb == "untaint"
    allowed = _TAINT_TO_REMOVE if remove else _TAINT
    wrong = [taint for taint in options.taints if not allowed.fullmatch(taint)]
    if wrong:
        effects = ", ".join(EFFECTS)
        form = "KEY[=VALUE][:EFFECT]" if remove else "KEY[=VALUE]:EFFECT"
        raise LocalkubeError(f"taint {wrong[0]!r}: must be {form}, and EFFECT one of {effects}")
    taints = [f"{taint}-" if remove else taint for taint in options.taints]
    extra = [] if remove else ["--overwrite"]
    done = Cluster.attach(options.name).kubectl("taint", "node", options.node, *taints, *extra, check=False)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode


def _say(text: str) -> int:
    """Print what was done to stderr, apart from a command's output. Returns the exit code of success."""
    print(text, file=sys.stderr)
    return 0


def _condition(exit_code: int | None) -> str:
    if exit_code is None:
        return "running"
    return f"was ended by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with {exit_code}"


def _node_options(options: argparse.Namespace) -> NodeOptions:
    images = _pairs("--image", options.image, "PATTERN=FOLDER")
    return NodeOptions(
        labels=_pairs("--label", options.label, "KEY=VALUE"),
        images={pattern: Path(folder) for pattern, folder in images.items()},
        entrypoints=_pairs("--entrypoint", options.entrypoint, "NAME=COMMAND"),
    )


def _pairs(flag: str, texts: Sequence[str], form: str) -> dict[str, str]:
    """What a flag was given, split at the first `=`; `form` says in the error how it must look."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise LocalkubeError(f"{flag} {text!r}: must be {form}")
        pairs[key] = value
    return pairs


def _parser() -> argparse.ArgumentParser:
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument(
        "--name", default=DEFAULT_NAME, metavar="CLUSTER", help="the cluster's name (default: %(default)s)"
    )
    parser = argparse.ArgumentParser(
        prog="python -m localkube",
        description="A real Kubernetes control plane on this machine; its nodes and pods are processes of this user.",
        epilog="Every command has its own --help.",
    )
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    up = verbs.add_parser("up", parents=[named], help="start a cluster that lives until `down`")
    up.add_argument("--nodes", type=_at_least(0), default=0, metavar="COUNT",
                    help="process nodes to start, named node-1, node-2, ... (default: %(default)s)")  # fmt: skip
    up.add_argument("--node-grace-seconds", type=_at_least(2), metavar="SECONDS",
                    default=ClusterOptions.node_monitor_grace_seconds,
                    help="how long a node may be silent before it is NotReady (at least 2, default: %(default)s)")  # fmt: skip
    _add_node_options(up)
    up.set_defaults(run=_up)
    down = verbs.add_parser("down", parents=[named], help="end a cluster and remove all of its files")
    down.add_argument("--all", action="store_true", help="every cluster of this user")
    down.set_defaults(run=_down)
    status = verbs.add_parser("status", help="list running clusters and their processes")
    status.add_argument(
        "--name", metavar="CLUSTER", help="only this cluster; exit code 1 if one of its processes is dead"
    )
    status.add_argument("--json", action="store_true", help="print everything as one JSON object")
    status.set_defaults(run=_status)
    kubeconfig = verbs.add_parser("kubeconfig", parents=[named], help="print the administrator's kubeconfig path")
    kubeconfig.add_argument("--content", action="store_true", help="print the file itself")
    kubeconfig.set_defaults(run=_kubeconfig)
    kubectl = verbs.add_parser("kubectl", parents=[named], help="run kubectl as the administrator")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- ARGUMENTS", help="arguments of kubectl")
    kubectl.set_defaults(run=_kubectl)
    build = verbs.add_parser("build", help="build the programs unless they are in the cache, and print their folder")
    build.add_argument("--helm", action="store_true", help="build Helm too")
    build.set_defaults(run=_build)
    _add_node_verbs(verbs.add_parser("node", help="process nodes of a cluster"), named)
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


def _add_node_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE",
                        help="a label of the Node object; may be given again")  # fmt: skip
    parser.add_argument("--image", action="append", default=[], metavar="PATTERN=FOLDER",
                        help="the environment of images with this name, as 'team/*=.venv'; may be given again")  # fmt: skip
    parser.add_argument("--entrypoint", action="append", default=[], metavar="NAME=COMMAND",
                        help="what an image runs where a container names no command; may be given again")  # fmt: skip


def _add_node_verbs(parser: argparse.ArgumentParser, named: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    verbs.add_parser("list", parents=[named], help="list the nodes' processes").set_defaults(run=_node_list)
    described = {
        "add": (_node_add, "start a node and wait until it is Ready"),
        "kill": (_node_kill, "simulate node death: SIGKILL to the node and all that runs on it"),
        "stop": (_node_stop, "end a node in order, its pods first; its Node object stays"),
        "restart": (_node_restart, "power-cycle a node: kill it if it runs, and start it again"),
        "taint": (_node_taint, "set taints (KEY[=VALUE]:EFFECT)"),
        "untaint": (_node_taint, "remove taints (KEY[=VALUE][:EFFECT])"),
    }
    for verb, (run, text) in described.items():
        one = verbs.add_parser(verb, parents=[named], help=text)
        one.add_argument("node", metavar="NODE", help="the node's name")
        one.set_defaults(run=run)
        if verb == "add":
            _add_node_options(one)
        if run is _node_taint:
            one.add_argument("taints", nargs="+", metavar="TAINT", help=f"EFFECT is one of {', '.join(EFFECTS)}")
