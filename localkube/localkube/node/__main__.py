"""`python -m localkube.node`: run one node of a cluster until SIGTERM."""

import argparse
import asyncio
import contextlib
import ctypes
import json
import logging
import os
import shlex
import signal
import sys
from pathlib import Path

from localkube.node.api import ApiError
from localkube.node.containers import StartFailed
from localkube.node.images import Images
from localkube.node.objects import Json
from localkube.node.program import NodeProgram, NodeSettings

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
PR_SET_PDEATHSIG = 1


def pair(text: str) -> tuple[str, str]:
    """KEY=VALUE."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def taint(text: str) -> Json:
    """KEY[=VALUE]:EFFECT."""
    rest, _, effect = text.rpartition(":")
    key, _, value = rest.partition("=")
    if not key or effect not in EFFECTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY[=VALUE]:EFFECT with one of {', '.join(EFFECTS)}")
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def host_port(text: str) -> tuple[str, int]:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    this = argparse.ArgumentParser("python -m localkube.node", description=__doc__)
    this.add_argument("--kubeconfig", type=Path, required=True)
    this.add_argument("--name", required=True)
    this.add_argument("--label", type=pair, action="append", default=[], metavar="KEY=VALUE")
    this.add_argument("--taint", type=taint, action="append", default=[], metavar="KEY=VALUE:EFFECT")
    this.add_argument("--capacity", type=pair, action="append", default=[], metavar="RESOURCE=QUANTITY")
    this.add_argument("--state-dir", type=Path, help="folder for pods' files (default: a temporary one)")
    this.add_argument("--image", type=pair, action="append", default=[], metavar="PATTERN=FOLDER",
                      help="the environment (FOLDER/bin) of images with this name; '*' matches anything")  # fmt: skip
    this.add_argument("--entrypoint", type=pair, action="append", default=[], metavar="NAME=COMMAND",
                      help="what a container of this image runs if it names no command")  # fmt: skip
    this.add_argument("--isolation", choices=("namespaces", "process"), default="namespaces")
    this.add_argument(
        "--lease-seconds",
        type=int,
        default=8,
        help="how long the Lease is valid; it is renewed four times in this time",
    )
    this.add_argument(
        "--backoff-seconds",
        type=float,
        default=10.0,
        help="wait before a container's second restart; doubles each time",
    )
    this.add_argument(
        "--refresh-seconds", type=float, default=10.0, help="how often volumes are updated from their sources"
    )
    this.add_argument("--stop-seconds", type=float, default=5.0, help="grace of the pods when the node stops")
    this.add_argument(
        "--service-address",
        type=host_port,
        metavar="HOST:PORT",
        help="where pods reach the API server (default: where the node does)",
    )
    this.add_argument("--ready-file", type=Path, help="a file to create once the node is registered")
    this.add_argument("--delete-node-on-exit", action="store_true")
    this.add_argument("--die-with-parent", action="store_true", help="stop when the parent process dies (Linux)")
    return this


def settings(arguments: argparse.Namespace) -> NodeSettings:
    """The settings of a node from its command line."""
    host_path = os.environ.get("PATH", os.defpath)
    folders = {name: Path(folder).absolute() for name, folder in arguments.image}
    entrypoints = {name: shlex.split(command) for name, command in arguments.entrypoint}
    return NodeSettings(
        kubeconfig=arguments.kubeconfig,
        name=arguments.name,
        images=Images(host_path, folders, entrypoints),
        labels=dict(arguments.label),
        taints=arguments.taint,
        capacity=dict(arguments.capacity),
        state_dir=arguments.state_dir.absolute() if arguments.state_dir else None,
        isolation=arguments.isolation,
        lease_seconds=arguments.lease_seconds,
        backoff_seconds=arguments.backoff_seconds,
        refresh_seconds=arguments.refresh_seconds,
        stop_seconds=arguments.stop_seconds,
        delete_on_exit=arguments.delete_node_on_exit,
        service_address=arguments.service_address,
    )


async def serve(arguments: argparse.Namespace) -> None:
    """Run the node until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await NodeProgram(settings(arguments)).run(stop, arguments.ready_file)


def main() -> int:
    """Run the node. The exit code is 0 after a clean stop, 1 if the node could not start."""
    arguments = parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if arguments.die_with_parent:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)
    try:
        asyncio.run(serve(arguments))
    except (StartFailed, ApiError, OSError, ValueError, json.JSONDecodeError) as problem:
        print(f"node {arguments.name}: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
