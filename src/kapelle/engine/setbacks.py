"""What could not be put away: told once, and not tried again every minute."""

import logging
import time

from kapelle.domain.errors import KapelleError

_log = logging.getLogger("kapelle.upkeep")
_AGAIN_S = 3600.0


class Setbacks:
    """The tasks for which a duty failed, as long as this daemon lives."""

    def __init__(self, again_s: float = _AGAIN_S) -> None:
        self._again_s = again_s
        self._failed: dict[str, tuple[float, str]] = {}

    def __len__(self) -> int:
        return len(self._failed)

    def may_try(self, task_id: str) -> bool:
        """Whether a duty never failed for this task, or did so long enough ago."""
        failed = self._failed.get(task_id)
        return failed is None or time.monotonic() - failed[0] >= self._again_s

    def note(self, task_id: str, error: KapelleError | OSError) -> None:
        told = self._failed.get(task_id)
        reason = _reason(error)
        if told is None or told[1] != reason:
            _log.warning("%s stays: %s", task_id, reason)
        self._failed[task_id] = (time.monotonic(), reason)

    def overcome(self, task_id: str) -> None:
        self._failed.pop(task_id, None)


def _reason(error: KapelleError | OSError) -> str:
    if isinstance(error, KapelleError):
        return f"{error.message} {error.hint or ''}".rstrip()
    return str(error)
