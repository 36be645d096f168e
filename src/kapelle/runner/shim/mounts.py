"""Mounts of a private mount namespace, by the system calls of Linux 5.12 and later.

Standard library only. A mount is prepared as a file descriptor and attached later, so that a
directory can be opened first and covered by another mount afterwards.
"""

import ctypes
import os
import struct

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_FROM_FD = 0x4
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CREATE = 6
_MS_SLAVE_RECURSIVE = 1 << 19 | 1 << 14

# These numbers are the same on every architecture.
_OPEN_TREE = 428
_MOVE_MOUNT = 429
_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_MOUNT_SETATTR = 442

READ_ONLY = 1
NO_SETUID = 2
NO_DEVICES = 4
NO_EXEC = 8

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, action: str) -> int:
    """Return the result of a call of the C library; raise OSError if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")
    return result


def keep_mounts_private() -> None:
    """Keep later mounts of this namespace from reaching the namespace it was copied from."""
    flags = ctypes.c_ulong(_MS_SLAVE_RECURSIVE)
    check(_libc.mount(None, b"/", None, flags, None), "make mounts private")


def open_tree(path: str) -> int:
    """Return a detached copy of everything that is mounted at a path and below it."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE)
    return check(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags), f"open {path}")


def copy_tree(mount: int) -> int:
    """Return another detached copy of a detached mount."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE | _AT_EMPTY_PATH)
    return check(_libc.syscall(_OPEN_TREE, mount, b"", flags), "copy a mount")


def attach(mount: int, path: str) -> None:
    """Attach a detached mount at an existing path, and close its descriptor."""
    flags = ctypes.c_uint(_MOVE_MOUNT_FROM_FD)
    target = os.fsencode(path)
    check(_libc.syscall(_MOVE_MOUNT, mount, b"", _AT_FDCWD, target, flags), f"mount on {path}")
    os.close(mount)


def set_attributes(path: str, *, add: int = 0, remove: int = 0, recursive: bool = False) -> None:
    """Change the attributes of the mount at a path, or of all mounts below it, too."""
    _set_attributes(_AT_FDCWD, os.fsencode(path), add, remove, _AT_RECURSIVE * recursive)


def restrict(mount: int, attributes: int = READ_ONLY | NO_SETUID) -> None:
    """Add attributes to a detached mount and to everything below it."""
    _set_attributes(mount, b"", attributes, 0, _AT_EMPTY_PATH | _AT_RECURSIVE)


def _set_attributes(directory: int, path: bytes, add: int, remove: int, flags: int) -> None:
    attributes = struct.pack("=4Q", add, remove, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    result = _libc.syscall(_MOUNT_SETATTR, directory, path, ctypes.c_uint(flags), attributes, size)
    check(result, f"change the mount {os.fsdecode(path)}")


def make_file_system(kind: str, attributes: int, **options: str) -> int:
    """Return a new, detached mount of a file system such as tmpfs or overlay.

    An option with an empty value is a flag.
    """
    context = check(_libc.syscall(_FSOPEN, kind.encode(), _FSOPEN_CLOEXEC), f"open {kind}")
    try:
        for name, value in options.items():
            if value:
                _configure(context, _FSCONFIG_SET_STRING, name.encode(), os.fsencode(value))
            else:
                _configure(context, _FSCONFIG_SET_FLAG, name.encode(), None)
        _configure(context, _FSCONFIG_CREATE, None, None)
        flags = ctypes.c_uint(attributes)
        return check(_libc.syscall(_FSMOUNT, context, _FSMOUNT_CLOEXEC, flags), f"mount {kind}")
    finally:
        os.close(context)


def _configure(context: int, command: int, name: bytes | None, value: bytes | None) -> None:
    result = _libc.syscall(_FSCONFIG, context, command, name, value, 0)
    check(result, f"set {(name or b'up').decode()}")


def make_overlay(layers: tuple[str, ...], upper: str, work: str) -> int:
    """Return a detached overlay: layers, the topmost first, below a directory for changes.

    The layers must not change while the overlay is in use.
    """
    # A path given by its descriptor needs no escaping and fits into the kernel's 255 bytes.
    opened = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*layers, upper, work)]
    paths = [f"/proc/self/fd/{descriptor}" for descriptor in opened]
    try:
        return make_file_system(
            "overlay",
            NO_SETUID | NO_DEVICES,
            lowerdir=":".join(paths[:-2]),
            upperdir=paths[-2],
            workdir=paths[-1],
            userxattr="",
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)
