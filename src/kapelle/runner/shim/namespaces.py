"""Enter namespaces in which only the paths of a confinement can be reached; standard library only.

The process that will execute the command does this itself: no helper process is left, and none can
be killed. Everything is opened while the process still sees the whole machine; then the machine
becomes read-only, hidden paths are covered, and what was opened is attached again.
"""

import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct

from . import mounts
from .mounts import NO_DEVICES, NO_EXEC, NO_SETUID, READ_ONLY, check
from .request import Confinement

_NEW_MOUNTS = 0x00020000
_NEW_IPC = 0x08000000
_NEW_USER = 0x10000000
_NEW_NETWORK = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41
# The flag of a listening socket in /proc/net/unix.
_ACCEPTS_CONNECTIONS = 1 << 16
# User 0 could change the kernel through these; nobody else can.
_KERNEL_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}

_libc = ctypes.CDLL(None, use_errno=True)


def enter(confinement: Confinement) -> None:
    """Move this process into namespaces of its own; it keeps its user.

    The caller must change to a directory afterwards: the present one is still the one below.
    """
    sockets = [path for path in list_listening_sockets() if path not in confinement.sockets]
    _unshare(has_network=confinement.network == "open")
    mounts.keep_mounts_private()
    devices = [(path, mounts.open_tree(path)) for path in confinement.devices]
    null = mounts.open_tree("/dev/null")
    attachments = _open_all(confinement)
    _make_machine_read_only()
    _make_devices(devices)
    # None stands for nothing: the path is covered.
    steps: list[tuple[str, int | None]] = [(path, None) for path in ("/run", *confinement.hidden)]
    covered = []
    # Outer paths first: a mount hides everything that was mounted below it before.
    for path, mount in sorted([*steps, *attachments], key=lambda step: step[0].count("/")):
        if mount is not None:
            _make_mount_point(path, mount)
            mounts.attach(mount, path)
        elif os.path.isdir(path):
            mounts.attach(_make_tmpfs("0755" if path == "/run" else "0700"), path)
            covered.append(path)
        elif os.path.exists(path):
            mounts.attach(mounts.copy_tree(null), path)
    _cover_sockets(sockets, null)
    for path in covered:
        mounts.set_attributes(path, add=READ_ONLY)
    os.close(null)


def _unshare(*, has_network: bool) -> None:
    user = os.getuid()
    group = os.getgid()
    flags = _NEW_USER | _NEW_MOUNTS | _NEW_IPC
    if not has_network:
        flags |= _NEW_NETWORK
    check(_libc.unshare(flags), "make namespaces")
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(content)
    if not has_network:
        _start_loopback()


def _start_loopback() -> None:
    with socket.socket() as any_socket:
        request = struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _open_all(confinement: Confinement) -> list[tuple[str, int]]:
    """Open everything that is attached later; return it with its path."""
    tmp = mounts.open_tree(confinement.tmp)
    opened = [("/tmp", mounts.copy_tree(tmp)), ("/var/tmp", tmp)]
    for path in confinement.shown:
        opened.append((path, _open_read_only(path)))
    for path in confinement.writable:
        opened.append((path, mounts.open_tree(path)))
    for source, path in confinement.read_only_binds:
        opened.append((path, _open_read_only(source)))
    for source, path in confinement.binds:
        opened.append((path, mounts.open_tree(source)))
    for layers, changes, work, path in confinement.overlays:
        opened.append((path, mounts.make_overlay(layers, changes, work)))
    for path in confinement.pinned:
        opened.append((path, _open_read_only(path)))
    return opened


def _open_read_only(path: str) -> int:
    mount = mounts.open_tree(path)
    mounts.restrict(mount)
    return mount


def _make_machine_read_only() -> None:
    kernel_settings = []
    if os.getuid() == 0:
        kernel_settings = [path for path in _KERNEL_SETTINGS if os.path.exists(path)]
    opened = [(path, _open_read_only(path)) for path in kernel_settings]
    mounts.set_attributes("/", add=READ_ONLY | NO_SETUID, recursive=True)
    # Programs with a sandbox of their own write to /proc/self/uid_map.
    mounts.set_attributes("/proc", remove=READ_ONLY)
    for path, mount in opened:
        mounts.attach(mount, path)


def _make_tmpfs(mode: str, size: str = "1m", attributes: int = NO_SETUID | NO_DEVICES) -> int:
    return mounts.make_file_system("tmpfs", attributes, mode=mode, size=size)


def _make_devices(devices: list[tuple[str, int]]) -> None:
    """Replace /dev by a directory with the allowed devices and terminals of its own."""
    mounts.attach(_make_tmpfs("0755", attributes=NO_SETUID), "/dev")
    for path, mount in devices:
        _make_mount_point(path, mount)
        mounts.attach(mount, path)
    os.mkdir("/dev/pts")
    os.mkdir("/dev/shm")
    options = {"ptmxmode": "0666", "mode": "620", "newinstance": ""}
    terminals = mounts.make_file_system("devpts", NO_SETUID | NO_EXEC, **options)
    mounts.attach(terminals, "/dev/pts")
    mounts.attach(_make_tmpfs("1777", size="50%"), "/dev/shm")
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    mounts.set_attributes("/dev", add=READ_ONLY)


def _make_mount_point(path: str, mount: int) -> None:
    """Create a path in a directory of this namespace if it was covered there."""
    if os.path.lexists(path):
        return
    if stat.S_ISDIR(os.fstat(mount).st_mode):
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _cover_sockets(sockets: list[str], null: int) -> None:
    """Cover the sockets of other processes, which would accept connections from here."""
    for path in sockets:
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                mounts.attach(mounts.copy_tree(null), path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                raise


def list_listening_sockets() -> list[str]:
    """Return the paths of the Unix sockets on which a process listens.

    A read-only mount keeps nobody from connecting to them.
    """
    paths = set()
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return []
    for line in lines:
        columns = line.split(None, 7)
        has_path = len(columns) == 8 and columns[7].startswith("/")
        if has_path and int(columns[3], 16) & _ACCEPTS_CONNECTIONS:
            paths.add(os.path.normpath(columns[7]))
    return sorted(paths)
