"""Confine this process by the kernel, before it executes the command; standard library only."""

import ctypes
import struct

from . import bubblewrap, landlock, namespaces, syscall_filter
from .mounts import check
from .request import Confinement

_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_LAST_CAPABILITY = 63
# NOROOT and NO_SETUID_FIXUP, locked, and KEEP_CAPS off, locked: user 0 is a user like any other.
_SECURE_BITS = 0b101111
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def apply(confinement: Confinement, directory: str) -> list[bytes]:
    """Confine this process and all its descendants for good.

    Returns words to put before the command, for the rung on which another program confines it.
    Raises OSError if this process could not be confined.
    """
    if confinement.rung == "bubblewrap":
        return bubblewrap.build_prefix(confinement, directory)
    if confinement.rung == "namespaces":
        namespaces.enter(confinement)
        drop_capabilities()
        landlock.scope_signals_and_sockets()
        syscall_filter.install()
    else:
        drop_capabilities()
        landlock.restrict_paths(confinement)
        syscall_filter.install(unix_sockets=False, internet=confinement.network == "open")
    return []


def drop_capabilities() -> None:
    """Drop all capabilities, so that no program and no user id brings one back.

    Without them nobody can unmount what hides a path. Sets no_new_privs as well, which Landlock and
    the filter of system calls need.
    """
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    try:
        _control(_PR_SET_SECUREBITS, _SECURE_BITS)
    except PermissionError:
        # An ordinary user outside of a namespace has no capability to lose.
        return
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _control(_PR_CAPBSET_DROP, capability)
        except OSError:
            break  # this kernel has no more
    _control(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    check(_libc.capset(header, bytes(24)), "drop the capabilities")


def _control(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    check(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl {option}")
