"""What people type as option values, turned into what the API takes."""

import math
import os
import re
from collections.abc import Iterable

from kapelle.domain.errors import InvalidInput

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h|d)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LONGEST_S = 31_536_000.0


def duration_s(text: str, option: str = "the duration") -> float:
    """Seconds from 90, 90s, 10m, 2h or 1h30m."""
    typed = text.strip().lower()
    seconds = _plain_seconds(typed)
    if seconds is None and re.fullmatch(f"(?:{_PART.pattern})+", typed):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(typed))
    if seconds is None:
        raise InvalidInput(
            f"{option} is not a duration: {text!r}.", hint="Write it like 90, 90s, 10m or 2h."
        )
    if not 0 < seconds <= LONGEST_S:
        raise InvalidInput(f"{option} must be more than nothing and at most a year, not {text!r}.")
    return seconds


def _plain_seconds(typed: str) -> float | None:
    try:
        number = float(typed)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def optional_duration_s(text: str | None, option: str) -> float | None:
    return None if text is None else duration_s(text, option)


def environment(entries: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE as given, NAME alone with its value in our own environment."""
    chosen = {}
    for entry in entries:
        name, given, value = entry.partition("=")
        if not _ENV_NAME.fullmatch(name):
            # The entry may hold a secret, so only the part before the sign is shown.
            raise InvalidInput(
                f"--env {name!r} is not a variable name.",
                hint="Write --env NAME=VALUE or --env NAME.",
            )
        if not given:
            if name not in os.environ:
                raise InvalidInput(
                    f"--env {name}: this variable is not set here.",
                    hint=f"Write --env {name}=VALUE, or export it first.",
                )
            value = os.environ[name]
        chosen[name] = value
    return chosen


def key_values(entries: Iterable[str], option: str) -> dict[str, str]:
    """KEY=VALUE pairs; the value may contain further equal signs."""
    pairs = {}
    for entry in entries:
        key, given, value = entry.partition("=")
        if not given or not key.strip():
            raise InvalidInput(
                f"{option} {entry!r} is not a pair.", hint=f"Write {option} KEY=VALUE."
            )
        pairs[key.strip()] = value
    return pairs


def listed(entries: Iterable[str], what: str) -> list[str]:
    """Values that were repeated, separated by commas, or both; order kept, doubles dropped.

    An empty one is refused: in a script it is what an earlier command failed to print.
    """
    parts = [not_empty(part.strip(), what) for entry in entries for part in entry.split(",")]
    return list(dict.fromkeys(parts))


def not_empty(text: str, what: str) -> str:
    """The text itself, which must hold something."""
    if not text.strip():
        raise InvalidInput(
            f"{what} is empty.", hint="Perhaps an earlier command failed to print its value."
        )
    return text
