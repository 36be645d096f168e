"""The shim's signals as flags and a readable file; standard library only."""

import contextlib
import os
import signal

_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)


def forget_all() -> None:
    """Undo what was inherited and what Python does, for everything forked from here."""
    for number in signal.valid_signals():
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def forget_ours() -> None:
    """Undo what the shim ignores; what it handles is undone by exec."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)


class Signals:
    """SIGTERM asks for a stop, SIGCHLD tells of a child; a terminal's signals are not for us."""

    def __init__(self) -> None:
        self.stop = False
        self.child = True
        self.file, writer = os.pipe()
        os.set_blocking(self.file, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGCHLD, self._on_child)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.file, 4096)

    def _on_stop(self, *_: object) -> None:
        self.stop = True

    def _on_child(self, *_: object) -> None:
        self.child = True
