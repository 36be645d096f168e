"""Confine a command by bubblewrap, where only this program may make namespaces.

Standard library only. Some systems (AppArmor on Ubuntu 24.04 and later) refuse user namespaces to
all programs but a few that they know. It costs two more processes and some 20 ms per start.
"""

import errno
import os
import stat

from . import namespaces, syscall_filter
from .request import Confinement

# Never looked for on PATH, on which an agent may have put a program.
_PROGRAMS = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")
_OPTIONS = (
    "--die-with-parent", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--cap-drop", "ALL",
    "--ro-bind", "/", "/", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys",
    "--dev", "/dev", "--tmpfs", "/run",
)  # fmt: skip
# `--dev` makes these itself.
_STANDARD_NAMES = ("null", "zero", "full", "random", "urandom", "tty")
_STANDARD_DEVICES = {f"/dev/{name}" for name in _STANDARD_NAMES}


def build_prefix(confinement: Confinement, directory: str) -> list[bytes]:
    """Return the words to put before a command, so that bubblewrap confines it.

    Leaves an open file with the filter of system calls to the program. Raises OSError if bubblewrap
    is not installed.
    """
    program = next((path for path in _PROGRAMS if os.path.exists(path)), None)
    if program is None:
        raise OSError(errno.ENOENT, "bubblewrap (bwrap) is not installed")
    if confinement.overlays:
        raise OSError(errno.ENOTSUP, "bubblewrap cannot mount layers")
    words = [program, *_OPTIONS]
    if confinement.network != "open":
        words.append("--unshare-net")
    for path in confinement.devices:
        if path not in _STANDARD_DEVICES:
            words += ["--dev-bind", path, path]
    covered = []
    mounts = [("--bind", confinement.tmp, path) for path in ("/tmp", "/var/tmp")]
    for path in confinement.hidden:
        if os.path.isdir(path):
            mounts.append(("--tmpfs", "", path))
            covered.append(path)
        else:
            mounts.append(("--ro-bind", "/dev/null", path))
    mounts += [("--ro-bind", path, path) for path in confinement.shown]
    mounts += [("--bind", path, path) for path in confinement.writable]
    mounts += [("--ro-bind", *bind) for bind in confinement.read_only_binds]
    mounts += [("--bind", *bind) for bind in confinement.binds]
    mounts += [("--ro-bind", path, path) for path in confinement.pinned]
    # Outer paths first: a mount hides everything that was mounted below it before.
    for mount in sorted(mounts, key=lambda entry: entry[2].count("/")):
        words += [word for word in mount if word]
    for path in namespaces.list_listening_sockets():
        if _is_visible_socket(path, confinement):
            words += ["--ro-bind", "/dev/null", path]
    for path in ["/run", *covered]:
        words += ["--remount-ro", path]
    words += ["--seccomp", str(_write_filter()), "--chdir", directory, "--"]
    return [os.fsencode(word) for word in words]


def _is_visible_socket(path: str, confinement: Confinement) -> bool:
    """Tell whether a socket stands at a path that the confined process sees as it is."""
    replaced = (*confinement.hidden, "/run", "/tmp", "/var/tmp", "/dev", "/var/run")
    places = [*replaced, *(target for _, target in confinement.binds)]
    if path in confinement.sockets or any(path.startswith(f"{place}/") for place in places):
        return False
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode) and os.access(path, os.W_OK)
    except OSError:
        return False


def _write_filter() -> int:
    """Return a file that bubblewrap reads the filter from."""
    file = os.memfd_create("filter", 0)
    os.write(file, syscall_filter.encode(unix_sockets=True, internet=True))
    os.lseek(file, 0, os.SEEK_SET)
    return file
