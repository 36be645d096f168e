"""Tells an agent that is stuck from one that is only quiet."""

import time
from pathlib import Path

from kapelle.runner import process_tree

# A runtime that only waits still wakes up now and then.
_IDLE_SHARE = 0.02
_LOOKS = 4


class Stall:
    """Looks at output and CPU time; both must stand still for the whole time."""

    def __init__(self, process_dir: Path, limit_s: float) -> None:
        self._process_dir = process_dir
        self._limit_s = limit_s
        self._bytes = -1
        self._cpu_s: float | None = None
        self._since = self._looked = time.monotonic()

    def silent_s(self) -> float:
        """For how long nothing has happened, once that is too long; 0 before."""
        now = time.monotonic()
        written = process_tree.output_bytes(self._process_dir)
        if written != self._bytes:
            self._bytes, self._since = written, now
        if now - self._looked >= self._limit_s / _LOOKS:
            self._look_at_cpu(now)
        silent = now - self._since
        return silent if silent >= self._limit_s else 0.0

    def _look_at_cpu(self, now: float) -> None:
        used, before = process_tree.cpu_s(self._process_dir), self._cpu_s
        idle = before is not None and used is not None
        if not idle or (used or 0) - (before or 0) > _IDLE_SHARE * (now - self._looked):
            # The first look only tells where to count from.
            self._since = self._since if before is None and used is not None else now
        self._cpu_s, self._looked = used, now
