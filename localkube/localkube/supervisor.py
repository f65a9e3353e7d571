"""The parent of a cluster's processes. When the process that started the cluster ends, it ends and removes everything.

It runs as `python -m localkube.supervisor NAME LOCK_HANDLE OWNER_PID`. It ends the cluster when its standard input closes
or the owner's process ends (neither counts after a request to detach), on SIGTERM, on request, or when the cluster's files are
gone. It has one thread, since the kernel ties a child's death signal to a thread.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localkube.ports import reserved_port
from localkube.processes import Launch, ProcessTable, become_subreaper
from localkube.registry import RegistryEntry

# Enough for a node to stop in order; its pods' data is deleted with the cluster.
NODE_GRACE_SECONDS = 1.0
_REQUEST_SECONDS = 5.0
_REQUEST_BYTES = 1 << 20
_BACKLOG = 16
_LOOK_SECONDS = 2.0


class Supervisor:
    """Serves requests, one JSON object per connection, until the cluster ends."""

    def __init__(self, entry: RegistryEntry) -> None:
        self._entry = entry
        self._table = ProcessTable()
        self._ports: list[socket.socket] = []
        self._detached = False
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "list": self._list,
            "reserve_port": self._reserve_port,
            "start": self._start,
            "restart": self._restart,
            "stop": self._stop,
            "forget": self._forget,
            "detach": self._detach,
            "shutdown": self._shutdown,
        }

    def run(self, owner: int) -> None:
        """Serve until the cluster ends, then stop its processes and remove its files. `owner` is a process id."""
        try:
            self._watch_signals()
            self._watch_owner(owner)
            listener = self._listen()
            while not self._ending:
                for key, _ in self._selector.select(_LOOK_SECONDS):
                    key.data(key.fileobj)
                self._look_for_files()
            listener.close()
        finally:
            self._table.stop_all(node_grace_seconds=NODE_GRACE_SECONDS)
            self._entry.remove()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Clients wait for the path, so the socket must accept connections before it has that path.
        scratch = self._entry.socket.with_name(".c")
        listener.bind(str(scratch))
        listener.listen(_BACKLOG)
        scratch.rename(self._entry.socket)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        return listener

    def _watch_signals(self) -> None:
        receiver, sender = socket.socketpair()
        receiver.setblocking(False)
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno())
        self._wakeup = sender
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._selector.register(receiver, selectors.EVENT_READ, self._on_signal)

    def _on_signal(self, receiver: socket.socket) -> None:
        numbers = set(receiver.recv(4096))
        if numbers - {signal.SIGCHLD}:
            self._ending = True
        else:
            self._table.end_strays()

    def _watch_owner(self, owner: int) -> None:
        """Watch the pipe and the process: a fork of the owner may keep the pipe open, and some systems have no pidfd."""
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._on_owner_gone)
        if hasattr(os, "pidfd_open"):
            handle = os.pidfd_open(owner)
            self._selector.register(handle, selectors.EVENT_READ, self._on_owner_gone)
        if os.getppid() != owner:
            self._ending = True

    def _on_owner_gone(self, source: Any) -> None:
        self._selector.unregister(source)
        if not self._detached:
            self._ending = True

    def _look_for_files(self) -> None:
        """End the cluster if a cleaner of temporary files has removed its folders: nobody could use or find it any more."""
        state = self._entry.read().get("state_dir")
        for folder in (self._entry.folder, *([Path(state)] if state else [])):
            if not folder.is_dir():
                print(f"{folder} is gone, so this cluster ends", file=sys.stderr, flush=True)
                self._ending = True

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_REQUEST_SECONDS)
            try:
                connection.sendall(json.dumps(self._answer(connection)).encode() + b"\n")
            except OSError as error:
                print(f"a client did not finish its request: {error}", file=sys.stderr, flush=True)

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        try:
            with connection.makefile("rb") as stream:
                request = json.loads(stream.readline(_REQUEST_BYTES))
            return self._operations[request["operation"]](request)
        except ValueError as error:
            return {"error": str(error)}
        except (KeyError, TypeError, OSError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _list(self, _request: dict[str, Any]) -> dict[str, Any]:
        self._table.reap()
        described = {
            name: {"pid": child.pid, "role": child.launch.role, "exit_code": child.exit_code}
            for name, child in self._table.children.items()
        }
        return {"pid": os.getpid(), "processes": described}

    def _reserve_port(self, _request: dict[str, Any]) -> dict[str, Any]:
        """Reserve a loopback port for a program."""
        reserved = reserved_port()
        self._ports.append(reserved)
        return {"port": reserved.getsockname()[1]}

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        launch = Launch(request["argv"], Path(request["log"]), request["role"], request.get("environment", {}))
        return {"pid": self._table.start(request["name"], launch).pid}

    def _restart(self, request: dict[str, Any]) -> dict[str, Any]:
        child = self._table.stop(request["name"], signal_number=signal.SIGKILL, grace_seconds=NODE_GRACE_SECONDS)
        return {"pid": self._table.start(request["name"], child.launch).pid}

    def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        child = self._table.stop(
            request["name"], signal_number=request["signal"], grace_seconds=request["grace_seconds"]
        )
        return {"exit_code": child.exit_code}

    def _forget(self, request: dict[str, Any]) -> dict[str, Any]:
        self._table.forget(request["name"])
        return {}

    def _detach(self, _request: dict[str, Any]) -> dict[str, Any]:
        self._detached = True
        return {}

    def _shutdown(self, _request: dict[str, Any]) -> dict[str, Any]:
        self._ending = True
        return {}


def main(arguments: list[str]) -> None:
    """Run the supervisor of one cluster."""
    name, _lock_handle, owner = arguments
    become_subreaper()
    # This process has inherited the lock's handle, and so holds the lock until it ends.
    Supervisor(RegistryEntry(name)).run(int(owner))


if __name__ == "__main__":
    main(sys.argv[1:])
