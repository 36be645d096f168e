"""System calls that Python does not wrap, and signals as flags; standard library only."""

import contextlib
import ctypes
import os
import signal
import struct
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_INTO_CGROUP = 0x200000000
_SYS_CLONE3 = 435
_PROC_PIDTBSDINFO = 3
_PROC_BSDINFO_BYTES = 136

# PyDLL keeps the interpreter lock held: a forked copy of this process must return holding it.
_libc = ctypes.PyDLL(None, use_errno=True)
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans(*, yes: bool = True) -> None:
    """Become the parent of every orphaned descendant, or stop doing that."""
    _prctl(_PR_SET_CHILD_SUBREAPER, yes)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux" and _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def fork_into_cgroup(directory: int) -> int:
    """Fork with the child created in a cgroup; moving it there later costs 10 ms."""
    arguments = struct.pack(
        "=11Q", _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, directory
    )
    buffer = ctypes.create_string_buffer(arguments, len(arguments))
    pid: int = _libc.syscall(_SYS_CLONE3, buffer, ctypes.c_size_t(len(arguments)))
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone3")
    return pid


def read_darwin_start_time(pid: int) -> int | None:
    """Return the start time of a process on macOS, in microseconds; None if it is dead."""
    buffer = ctypes.create_string_buffer(_PROC_BSDINFO_BYTES)
    size = _libc.proc_pidinfo(
        pid, _PROC_PIDTBSDINFO, ctypes.c_uint64(0), buffer, _PROC_BSDINFO_BYTES
    )
    if size != _PROC_BSDINFO_BYTES:
        return None
    seconds, micros = struct.unpack_from("=QQ", buffer.raw, 120)
    return int(seconds * 1_000_000 + micros)


class Signals:
    """Flags for SIGTERM (stop) and SIGCHLD (child); signals of a terminal are ignored."""

    def __init__(self) -> None:
        for number in signal.valid_signals():
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGCHLD, self._on_child)
        self.renew()

    def renew(self) -> None:
        """Reset the flags in a forked process, which inherits the handlers."""
        self.stop = False
        self.child = True
        self.file, writer = os.pipe()
        os.set_blocking(self.file, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def drain(self) -> None:
        """Empty the pipe that wakes the poll loop."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.file, 4096)

    def _on_stop(self, *_: object) -> None:
        self.stop = True

    def _on_child(self, *_: object) -> None:
        self.child = True


def restore_signals() -> None:
    """Restore the signals that are ignored here; exec restores those with a handler."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
