"""The small program between a node and the processes of one container.

It starts in milliseconds with every container, so it imports the standard library only. It reads one JSON document from
its standard input and reports on file descriptor `status_fd`, one JSON object per line: `{"pid": N}` once the command
runs, `{"error": text}` if it could not be started, `{"exit": N}` or `{"signal": N}` when it has ended. SIGTERM goes on to
the command, and SIGUSR1 kills everything at once. If the node dies, the kernel kills this program, then the container's
first process, and then the whole PID namespace.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from types import FrameType
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Turn a C call's -1 into an OSError that names what was tried."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> None:
    check(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def report(status_fd: int, **message: object) -> None:
    os.write(status_fd, (json.dumps(message) + "\n").encode())


def enter_namespaces(spec: dict[str, Any]) -> None:
    """Leave the host's mount, PID and host-name namespaces; a user namespace first where the caller is not root."""
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS
    uid, gid = os.getuid(), os.getgid()
    if spec["user_namespace"]:
        flags |= CLONE_NEWUSER
    limits = " of an unprivileged user (user.max_user_namespaces, kernel.unprivileged_userns_clone, AppArmor)"
    check(libc.unshare(flags), "new namespaces" + (limits if spec["user_namespace"] else ""))
    if spec["user_namespace"]:
        # The same user inside and outside: files that the pod writes belong to the user who runs the node.
        write_proc("setgroups", "deny")
        write_proc("uid_map", f"{uid} {uid} 1")
        write_proc("gid_map", f"{gid} {gid} 1")
    name = spec["hostname"].encode()
    check(libc.sethostname(name, len(name)), "sethostname")


def write_proc(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
        file.write(text)


def become_command(spec: dict[str, Any], output_fd: int) -> None:
    """Replace this process by the container's command; returns only by raising."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if spec["no_new_privileges"]:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.umask(0o022)
    os.chdir(spec["cwd"])
    os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606  this is what a container is


def first_process(spec: dict[str, Any], go: int, failed: int) -> None:
    """Be the container's first process: die with the parent, build the file system, become the command.

    It waits for a byte from the pipe `go`, and writes why it could not start to the pipe `failed`.
    """
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.read(go, 1) != b"g":  # the parent died before the death signal was armed
            os._exit(1)
        output = os.open(spec["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        if spec["isolation"] == "namespaces":
            from rootfs import build_root  # type: ignore[import-not-found]  # only needed here, and it takes milliseconds

            build_root(spec, libc)
        become_command(spec, output)
    except BaseException as problem:  # the node must know every reason
        os.write(failed, describe(problem, spec).encode())
    os._exit(127)


def describe(problem: BaseException, spec: dict[str, Any]) -> str:
    if isinstance(problem, FileNotFoundError) and problem.filename is None:
        return f'exec: "{spec["argv"][0]}": not found in the container\'s PATH or file system'
    return f"{type(problem).__name__}: {problem}"


def kill_descendants() -> None:
    """Without a PID namespace: kill the processes that the command left, which are now this subreaper's children."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            children = f"/proc/self/task/{os.getpid()}/children"
            with open(children, encoding="ascii") as file:
                for child in file.read().split():
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)


def wait_for_any() -> int:
    """The id of a child that has ended and is not collected yet."""
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert ended is not None  # noqa: S101  only WNOHANG returns None
    return ended.si_pid


def supervise(pid: int, status_fd: int, *, namespaces: bool) -> None:
    """Wait for the first process `pid`, then report how it ended on `status_fd`.

    Without `namespaces`, kill what it left.
    """
    # Its id stays its own until it is collected. After that no signal may go to this id.
    while (ended := wait_for_any()) != pid:
        os.waitpid(ended, 0)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(pid, 0)
    if not namespaces:
        kill_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        report(status_fd, signal=-code)
    else:
        report(status_fd, exit=code)


def run(spec: dict[str, Any]) -> None:
    """Start the command of one container and wait for its end."""
    status_fd = int(spec["status_fd"])
    os.set_inheritable(status_fd, False)
    namespaces = spec["isolation"] == "namespaces"
    if namespaces:
        enter_namespaces(spec)
    else:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    go_read, go_write = os.pipe()
    failed_read, failed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        first_process(spec, go_read, failed_write)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        try:
            os.kill(pid, signal.SIGKILL if number == signal.SIGUSR1 else number)
        except ProcessLookupError:  # it did not start
            return

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGUSR1, pass_on)
    os.close(failed_write)
    os.write(go_write, b"g")
    problem = os.read(failed_read, 65536)
    if problem:
        os.waitpid(pid, 0)
        report(status_fd, error=problem.decode())
        return
    report(status_fd, pid=pid)
    supervise(pid, status_fd, namespaces=namespaces)


def enter(spec: dict[str, Any]) -> None:
    """Run a command inside the namespaces of a running container (probes, hooks) and end with its exit code."""
    pid = int(spec["pid"])
    kinds = ("user", "mnt", "uts", "pid") if spec["user_namespace"] else ("mnt", "uts", "pid")
    handles = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    output = os.dup(1)
    for handle, kind in zip(handles, kinds, strict=True):
        check(libc.setns(handle, 0), f"setns {kind}")
    child = os.fork()
    if child == 0:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            become_command(spec, output)
        except BaseException as problem:
            os.write(output, describe(problem, spec).encode())
        os._exit(127)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def main() -> None:
    parent = os.getppid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    spec = json.loads(sys.stdin.buffer.read())
    if os.getppid() != parent or parent != spec["node_pid"]:
        os._exit(1)  # the node died while this program started
    if "pid" in spec:
        enter(spec)
    try:
        run(spec)
    except OSError as problem:
        report(int(spec["status_fd"]), error=f"the container's namespaces cannot be made: {problem}")
