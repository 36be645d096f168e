"""The signals of the spawner and its shims as flags and a readable file; standard library only."""

import contextlib
import os
import signal

_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ)


class Signals:
    """SIGTERM asks for a stop, SIGCHLD tells of a child; a terminal's signals are not for us."""

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
        """Begin anew in a forked process, whose handlers are inherited."""
        self.stop = False
        self.child = True
        self.file, writer = os.pipe()
        os.set_blocking(self.file, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.file, 4096)

    def _on_stop(self, *_: object) -> None:
        self.stop = True

    def _on_child(self, *_: object) -> None:
        self.child = True


def forget_ours() -> None:
    """Undo what is ignored here; what is handled is undone by exec."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
