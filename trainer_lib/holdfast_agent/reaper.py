"""All descendants of this process: become their reaper, list them, kill them and reap them."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def become_reaper() -> None:
    """Make the kernel reparent every orphaned descendant to this process, as it does for PID 1 of a container anyway.

    Raises:
        OSError: the kernel refused.
    """
    if os.getpid() == 1:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def descendants(root: int) -> list[int]:
    """All processes below ``root``, in any session or process group; zombies included."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _parent(int(name))
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:  # it has just ended
        return None
    # The command name is in parentheses and may contain any byte, so the fields are counted from the last parenthesis.
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def kill_descendants(group: int | None = None) -> None:
    """Send SIGKILL to a process group, then to every descendant of this process, inside the group or not.

    A descendant that forks at this instant may leave a child behind: call again until ``reap`` finds none left.
    """
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def reap() -> tuple[dict[int, int], bool]:
    """Collect every child that has ended.

    Returns:
        The wait statuses by pid, and whether any child is left. The kernel reparents orphans to this process, so "no
        child" means "no descendant".
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


def oom_kills() -> int:
    """How many processes of this container's cgroup the kernel killed for lack of memory; 0 where it cannot be read."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            paths = [line.split(":", 2)[2].strip() for line in file if line.startswith("0::")]
        with open(f"/sys/fs/cgroup{paths[0]}/memory.events", encoding="utf-8") as file:
            events = dict(line.split() for line in file)
        return int(events["oom_kill"])
    except (OSError, IndexError, KeyError, ValueError):
        return 0
