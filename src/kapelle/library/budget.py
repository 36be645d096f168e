"""What a run may use."""

import math
from dataclasses import dataclass

from kapelle.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one run, None for any amount; they hold while agents work, and for all calls."""

    max_iterations: int = 5
    max_task_retries: int = 1
    max_seconds: float | None = None
    max_agent_calls: int | None = None
    max_usd: float | None = None

    def __post_init__(self) -> None:
        _require_whole("max_iterations", self.max_iterations, 1)
        _require_whole("max_task_retries", self.max_task_retries, 0)
        _require_whole("max_agent_calls", self.max_agent_calls, 1)
        for name, value in (("max_seconds", self.max_seconds), ("max_usd", self.max_usd)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"{name} must be more than 0, or None; it is {value!r}.")


def _require_whole(name: str, value: int | None, least: int) -> None:
    if value is not None and (not isinstance(value, int) or value < least):
        raise InvalidInput(f"{name} must be a whole number from {least} on; it is {value!r}.")
