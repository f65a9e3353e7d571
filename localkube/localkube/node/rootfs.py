"""The file system that a container sees: the host's with the pod's mounts. It leaves nothing on the host.

A new tmpfs becomes the root, and every top-level directory of the host is bound into it. If a mount point does not exist
on the host, a tmpfs covers its nearest existing parent. Bindings in that tmpfs show the parent's children, and the mount
point is created beside them. All of this is in the container's mount namespace and ends with it.
"""

import ctypes
import os
import stat
from collections.abc import Container
from typing import Any

MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_UNBINDABLE = 1 << 17
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MNT_DETACH = 2
SYS_MOUNT_SETATTR = 442  # the same number on every architecture
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_ATTR_RDONLY = 1


class MountAttr(ctypes.Structure):
    """`struct mount_attr` of mount_setattr(2)."""

    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


class Mounter:
    """Mounts below one new root directory, in the calling process's own mount namespace."""

    def __init__(self, root: str, libc: ctypes.CDLL) -> None:
        self.root = root
        self._libc = libc
        self._synthetic: set[str] = set()
        self._volumes: list[str] = []

    def volume(self, source: str, target: str, *, read_only: bool) -> None:
        """Bind the host's `source` to the container's `target`, with all mounts below it; `read_only` for all of them."""
        place = self.point(target, directory=os.path.isdir(source))
        self.mount(source, place, flags=MS_BIND | MS_REC)
        if read_only:
            self.read_only(place)
        self._volumes.append(f"{place}/")

    def mount(self, source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
        """Mount `source` on `target` as the system call does: `kind` is the type, `options` the data. Raises OSError."""
        result = self._libc.mount(
            source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
        )
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"mount {source} on {target.removeprefix(self.root) or '/'}: {os.strerror(number)}")

    def read_only(self, target: str) -> None:
        """Make a mount and all mounts below it read-only."""
        attributes = MountAttr(attr_set=MOUNT_ATTR_RDONLY)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        arguments = (AT_FDCWD, target.encode(), AT_RECURSIVE, ctypes.byref(attributes), size)
        if self._libc.syscall(SYS_MOUNT_SETATTR, *arguments) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"make {target.removeprefix(self.root)} read-only: {os.strerror(number)}")

    def base(self) -> None:
        """The host's top-level entries, bound into an empty tmpfs."""
        # Unbindable: to bind the directory that contains the new root must not bind the new root into itself.
        self.mount("localkube", self.root, kind="tmpfs", options="mode=0755")
        self.mount("none", self.root, flags=MS_UNBINDABLE)
        self._synthetic.add(self.root)
        self._bind_children("/", self.root, skip={"proc", "lost+found", "dev"})
        os.mkdir(f"{self.root}/proc")
        os.mkdir(f"{self.root}/dev")
        self._synthetic.add(f"{self.root}/dev")
        self._bind_children("/dev", f"{self.root}/dev", skip={"shm"})
        os.mkdir(f"{self.root}/dev/shm")

    def _bind_children(self, source: str, target: str, *, skip: Container[str] = ()) -> None:
        try:
            entries = list(os.scandir(source))
        except PermissionError as problem:
            what = f"{target.removeprefix(self.root)} is closed to this user, so nothing can be mounted in it"
            raise PermissionError(problem.errno, what) from problem
        for entry in entries:
            if entry.name in skip:
                continue
            place = f"{target}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), place)
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            if source == "/dev" and (
                stat.S_ISBLK(mode) or (entry.name.startswith(("tty", "vcs")) and entry.name != "tty")
            ):
                continue  # a pod does not need the host's disks and terminals
            if stat.S_ISDIR(mode):
                os.mkdir(place)
            else:
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
            self.mount(entry.path, place, flags=MS_BIND | MS_REC)

    def point(self, path: str, *, directory: bool) -> str:
        """The real path of a mount point in the new root. A missing one is created, as a `directory` or a file."""
        parts = [part for part in path.split("/") if part]
        place, hops = self.root, 0
        while parts:
            name = parts.pop(0)
            if name in (".", ".."):
                raise OSError(f"mount path {path} must not contain {name!r}")
            following = f"{place}/{name}"
            if os.path.islink(following):
                hops += 1
                if hops > 40:
                    raise OSError(f"mount path {path}: too many symbolic links")
                link = os.readlink(following)
                place, parts = self._follow(place, link, parts)
                continue
            if not os.path.lexists(following):
                self._make(place, name, directory=directory or bool(parts))
            place = following
        return place

    def _follow(self, place: str, link: str, rest: list[str]) -> tuple[str, list[str]]:
        """Where a symbolic link leads inside the new root, as if it already were the root."""
        inside = place.removeprefix(self.root)
        absolute = os.path.normpath(link if link.startswith("/") else f"{inside}/{link}")
        return self.root, [part for part in absolute.split("/") if part] + rest

    def _make(self, parent: str, name: str, *, directory: bool) -> None:
        in_volume = f"{parent}/".startswith(tuple(self._volumes))  # what is created there belongs to the volume
        if not in_volume and not self._ours(parent):
            self._make_synthetic(parent)
        place = f"{parent}/{name}"
        if directory:
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))

    def _ours(self, place: str) -> bool:
        """Whether a new entry in this directory stays inside the container, since one of its tmpfs holds it."""
        here = os.stat(place).st_dev
        return any(os.stat(root).st_dev == here for root in self._synthetic)

    def _make_synthetic(self, place: str) -> None:
        """Cover a directory of the host with a tmpfs that shows the same entries and can have new ones."""
        mode = stat.S_IMODE(os.stat(place).st_mode)
        behind = f"{self.root}/.behind"
        os.makedirs(behind, exist_ok=True)
        self.mount(place, behind, flags=MS_BIND | MS_REC)
        self.mount("localkube", place, kind="tmpfs", options=f"mode={mode:o}")
        self._bind_children(behind, place)
        self._libc.umount2(behind.encode(), MNT_DETACH)
        os.rmdir(behind)
        self._synthetic.add(place)


def _mount_volumes(mounter: Mounter, mounts: list[dict[str, Any]], *, read_only_root: bool) -> None:
    """Bind the pod's mounts, parents before children."""
    mounts = sorted(mounts, key=lambda mount: mount["target"].count("/"))
    if read_only_root:
        for mount in mounts:  # the mount points must exist before the root is read-only
            mounter.point(mount["target"], directory=os.path.isdir(mount["source"]))
        mounter.read_only(mounter.root)
    mounter.mount("shm", f"{mounter.root}/dev/shm", kind="tmpfs", flags=MS_NOSUID | MS_NODEV, options="mode=1777")
    for mount in mounts:
        mounter.volume(mount["source"], mount["target"], read_only=mount["read_only"])


def build_root(spec: dict[str, Any], libc: ctypes.CDLL) -> None:
    """Give the calling process (the first of its PID and mount namespaces) its container's file system."""
    root = spec["root"]
    mounter = Mounter(root, libc)
    mounter.mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mounter.base()
    mounter.point(spec["cwd"], directory=True)
    _mount_volumes(mounter, spec["mounts"], read_only_root=spec["read_only_root"])
    try:
        mounter.mount("proc", f"{root}/proc", kind="proc", flags=MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except PermissionError:  # the host masks parts of /proc, which a new one would show
        mounter.mount("/proc", f"{root}/proc", flags=MS_BIND | MS_REC)
    os.chdir(root)
    if libc.pivot_root(b".", b".") < 0 or libc.umount2(b".", MNT_DETACH) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"pivot_root: {os.strerror(number)}")
    os.chdir("/")
