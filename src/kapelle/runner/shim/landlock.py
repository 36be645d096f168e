"""Landlock: rights that a process and its descendants give up; standard library only.

In a mount namespace only its scopes are used (signals, abstract sockets). Alone it replaces the
namespace where a system refuses mounts: reading and writing are then allowed path by path.
"""

import ctypes
import os
import struct

from .mounts import check
from .request import Confinement

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_RULE_PATH = 1
_SCOPE_ABSTRACT_SOCKETS = 1
_SCOPE_SIGNALS = 2
_GET_VERSION = 1

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READING = _EXECUTE | _READ_FILE | _READ_DIR
# The access rights that each version of Landlock knows.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_VERSION_WITH_SCOPES = 6

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Return the version of Landlock in this kernel, 0 if it has none."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _GET_VERSION)))


def scope_signals_and_sockets() -> None:
    """Refuse signals and abstract sockets to the processes outside, where the kernel can do so."""
    if version() >= _VERSION_WITH_SCOPES:
        _restrict(_create_ruleset(0))


def restrict_paths(confinement: Confinement) -> None:
    """Allow reading and writing only where the confinement allows it."""
    known = _RIGHTS.get(version(), _RIGHTS[max(_RIGHTS)] if version() else 0)
    if not known:
        raise OSError(38, "this kernel has no Landlock")
    ruleset = _create_ruleset(known)
    rules = _PathRules(ruleset, known)
    everything = known & ~(_IOCTL_DEV | _MAKE_CHAR | _MAKE_BLOCK)
    unreadable = (*confinement.hidden, "/tmp", "/var/tmp", "/run", "/dev")
    rules.allow_all_but("/", _READING, unreadable)
    for path in confinement.shown:
        rules.allow_all_but(path, _READING, confinement.hidden)
    for path in (*confinement.writable, confinement.tmp, "/dev/shm"):
        rules.allow(path, everything)
    for path in (*confinement.devices, "/dev/ptmx", "/dev/pts"):
        rules.allow(path, _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV | _TRUNCATE)
    # Names are listed everywhere, contents are not; without this right, `ls ~` would fail.
    rules.allow("/", _READ_DIR)
    _restrict(ruleset)


class _PathRules:
    """Adds rules about paths to a ruleset."""

    def __init__(self, ruleset: int, known: int) -> None:
        self._ruleset = ruleset
        self._known = known

    def allow(self, path: str, rights: int) -> None:
        """Allow rights at a path and below it; a path that is missing is skipped."""
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        rights &= self._known
        if not os.path.isdir(path):
            rights &= _ON_FILES
        try:
            rule = struct.pack("=Qi", rights, descriptor)
            check(_libc.syscall(_ADD_RULE, self._ruleset, _RULE_PATH, rule, 0), f"allow {path}")
        finally:
            os.close(descriptor)

    def allow_all_but(self, top: str, rights: int, excluded: tuple[str, ...]) -> None:
        """Allow rights below a directory, except at the excluded paths.

        A rule cannot be taken back further down, so the siblings of each excluded path are allowed
        one by one.
        """
        inside = tuple(path for path in excluded if _is_below(path, top))
        if not inside:
            self.allow(top, rights)
            return
        if top in inside:
            return
        try:
            names = os.listdir(top)
        except OSError:
            return
        for name in names:
            path = os.path.join(top, name)
            if not os.path.islink(path):
                self.allow_all_but(path, rights, inside)


def _is_below(path: str, top: str) -> bool:
    """Tell whether a path is a directory or lies below it."""
    return path == top or path.startswith(top.rstrip("/") + "/")


def _create_ruleset(rights: int) -> int:
    if version() >= _VERSION_WITH_SCOPES:
        attributes = struct.pack("=3Q", rights, 0, _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    else:
        attributes = struct.pack("=Q", rights)
    size = ctypes.c_size_t(len(attributes))
    return check(_libc.syscall(_CREATE_RULESET, attributes, size, 0), "create a ruleset")


def _restrict(ruleset: int) -> None:
    """Give up the rights for good; the process must have no_new_privs set."""
    check(_libc.syscall(_RESTRICT_SELF, ruleset, 0), "restrict this process")
    os.close(ruleset)
