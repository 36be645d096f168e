"""What people type as option values, turned into what the API takes."""

import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kapelle.domain.errors import InvalidInput

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h|d)")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MOST_USD = 1_000_000.0
LONGEST_S = 31_536_000.0


def duration_s(text: str, option: str = "the duration", *, none: bool = False) -> float:
    """Seconds from 90, 90s, 10m, 2h or 1h30m; with none, 0 is one too."""
    typed = text.strip().lower()
    seconds = _plain_seconds(typed)
    if seconds is None and re.fullmatch(f"(?:{_PART.pattern})+", typed):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(typed))
    if seconds is None:
        raise InvalidInput(
            f"{option} is not a duration: {text!r}.", hint="Write it like 90, 90s, 10m or 2h."
        )
    if not 0 < seconds <= LONGEST_S and not (none and seconds == 0):
        raise InvalidInput(
            f"{option} must be more than 0 and at most a year, not {text!r}.",
            hint="Write it like 90, 90s, 10m or 2h.",
        )
    return seconds


def _plain_seconds(typed: str) -> float | None:
    try:
        number = float(typed)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def optional_duration_s(text: str | None, option: str) -> float | None:
    return None if text is None else duration_s(text, option)


def since(text: str | None, option: str) -> str | None:
    """A moment for the API: so long ago (7d, 12h), a date, or a time."""
    if text is None:
        return None
    typed = text.strip()
    if re.fullmatch(f"(?:{_PART.pattern})+", typed.lower()):
        ago = timedelta(seconds=duration_s(typed, option))
        return (datetime.now(UTC) - ago).isoformat()
    try:
        datetime.fromisoformat(typed)
    except ValueError:
        raise InvalidInput(
            f"{option} {text!r} is neither a duration nor a date.",
            hint=f"Write {option} 7d, {option} 2026-11-01 or {option} 2026-11-01T12:00:00Z.",
        ) from None
    return typed


def optional_usd(text: str | None, option: str) -> float | None:
    """US dollars from 5, 0.25 or $5."""
    if text is None:
        return None
    try:
        amount = float(text.strip().removeprefix("$"))
    except ValueError:
        amount = math.nan
    if not 0 < amount <= _MOST_USD:
        raise InvalidInput(
            f"{option} is not an amount of US dollars above zero: {text!r}.",
            hint=f"Write {option} 5 or {option} 0.25.",
        )
    return amount


def choice(option: str, value: str | None, allowed: Sequence[str]) -> str | None:
    """The value itself, which must be one of a few."""
    if value is not None and value not in allowed:
        *most, last = allowed
        raise InvalidInput(
            f"{option} cannot be {value!r}.", hint=f"Use {', '.join(most)} or {last}."
        )
    return value


def mcp_servers(entries: Iterable[str]) -> dict[str, Any]:
    """NAME=COMMAND, split as a shell would, or NAME=URL, as the API takes them."""
    servers: dict[str, Any] = {}
    for entry in entries:
        name, given, value = entry.partition("=")
        # What comes after the sign may hold a secret, so only the name is shown.
        if not given or not value.strip() or not _SERVER_NAME.fullmatch(name):
            raise InvalidInput(
                f"--mcp {name!r} needs a name of letters, digits, - and _, and a server.",
                hint='Write --mcp docs="npx -y some-server" or --mcp docs=https://…',
            )
        if name in servers:
            raise InvalidInput(f"--mcp {name} was given twice.", hint="Name each server once.")
        servers[name] = _server(name, value.strip())
    return servers


def _server(name: str, value: str) -> dict[str, Any]:
    if re.match(r"https?://", value):
        return {"url": value}
    try:
        return {"command": shlex.split(value)}
    except ValueError as error:
        raise InvalidInput(
            f"--mcp {name}: the command cannot be read: {str(error).lower()}.",
            hint="Close every quotation mark.",
        ) from None


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
            f"{what} is empty.",
            hint="Give it a value; perhaps an earlier command failed to print one.",
        )
    return text


def optional_text(text: str | None, what: str) -> str | None:
    """The same for what need not be given."""
    return None if text is None else not_empty(text, what)


def texts(options: dict[str, Any], names: Iterable[str]) -> dict[str, str | None]:
    """The options of these names, which are texts; each that is given must hold something."""
    return {name: optional_text(options[name], f"--{name.replace('_', '-')}") for name in names}
