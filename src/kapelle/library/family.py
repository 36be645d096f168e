"""All processes that a program started, however far they went away from it."""

import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]

from kapelle.runner.process_tree import marked

_PAUSE_S = 0.03
_KILL_LIMIT_S = 10.0


class Family:
    """A process, its descendants, and all that carry its mark in their environment.

    One that cleared its environment and lost its parent before anybody looked is not found.
    """

    def __init__(self, pid: int, mark: Path) -> None:
        self._mark = mark
        self._known: set[psutil.Process] = set()
        with suppress(psutil.Error):
            self._known.add(psutil.Process(pid))

    def members(self) -> list[psutil.Process]:
        """Those that live now."""
        for pid in marked(self._mark):
            with suppress(psutil.Error):
                self._known.add(psutil.Process(pid))
        for process in list(self._known):
            with suppress(psutil.Error):
                self._known.update(process.children(recursive=True))
        # A pid that was given to somebody else meanwhile does not count as running.
        self._known = {process for process in self._known if _lives(process)}
        return list(self._known)

    def ends_within(self, seconds: float) -> bool:
        """Whether all are gone by then."""
        deadline = time.monotonic() + seconds
        while self.members():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_PAUSE_S)
        return True

    def end(self, grace_s: float) -> list[int]:
        """Ask all to end, kill those that have not after the grace; returns who survived even."""
        for process in self.members():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGTERM)
                # A stopped one would not hear it.
                process.send_signal(signal.SIGCONT)
        if self.ends_within(grace_s):
            return []
        deadline = time.monotonic() + _KILL_LIMIT_S
        while left := self.members():
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            if time.monotonic() >= deadline:
                return [process.pid for process in left]
            time.sleep(_PAUSE_S)
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
