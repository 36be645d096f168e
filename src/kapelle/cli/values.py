"""What people type as option values, turned into what the API takes."""

import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from kapelle.cli.format import now
from kapelle.domain.errors import InvalidInput

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h|d)")
_DURATION = re.compile(f"(?:{_PART.pattern})+")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# What the agents set in the environment of the commands that they execute.
_CALLERS = {
    "claude": {"CLAUDECODE", "CLAUDE_CODE", "CLAUDE_SESSION_ID"},
    "codex": {"CODEX_RUN_ID", "CODEX_SESSION_ID", "CODEX_SANDBOX"},
    "gemini": {"GEMINI_CLI"},
    "opencode": {"OPENCODE", "OPENCODE_RUN_ID"},
    "qwen": {"QWEN_CODE"},
}
_MOST_USD = 1_000_000.0
LONGEST_S = 31_536_000.0


def refuse(*mistakes: tuple[object, str, str]) -> None:
    """Raise the first of several mistakes that was made: whether it was, its words, what to type
    instead."""
    for is_made, words, hint in mistakes:
        if is_made:
            raise InvalidInput(words, hint=hint)


def duration_s(text: str, option: str = "the duration", *, least: float | None = None) -> float:
    """Seconds from 90, 90s, 10m, 2h or 1h30m: at least so many, else more than 0."""
    typed, hint = text.strip().lower(), "Write it like 90, 90s, 10m or 2h."
    try:
        seconds = float(typed)
    except ValueError:
        parts = _PART.findall(typed) if _DURATION.fullmatch(typed) else [("nan", "s")]
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    some = "a second" if least == 1 else f"{least or 0:g} seconds"
    too_short = f"{option} must be at least {some}, not {text!r}."
    outside = f"{option} must be more than 0 and at most a year, not {text!r}."
    refuse(
        (not math.isfinite(seconds), f"{option} is not a duration: {text!r}.", hint),
        (least and 0 <= seconds < least, too_short, f"Write {option} 10m."),
        (not 0 <= seconds <= LONGEST_S or (seconds == 0 and least is None), outside, hint),
    )
    return seconds


def typed_duration(seconds: float) -> str:
    """A duration as a person would type it: 90 is 1m30s and 3600 is 1h."""
    left, parts = seconds, ""
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _UNITS[unit])
        parts += f"{count:.0f}{unit}" if count else ""
    return parts + (f"{left:g}s" if left or not parts else "")


def optional_duration_s(text: str | None, option: str) -> float | None:
    return None if text is None else duration_s(text, option)


def since(text: str | None, option: str) -> str | None:
    """A moment for the API: so long ago (7d, 12h), a date, or a time."""
    if text is None:
        return None
    typed = text.strip()
    if _DURATION.fullmatch(typed.lower()):
        return (now() - timedelta(seconds=duration_s(typed, option))).isoformat()
    try:
        datetime.fromisoformat(typed)
    except ValueError:
        raise InvalidInput(
            f"{option} {text!r} is neither a duration nor a date.",
            hint=f"Write {option} 7d, {option} 2026-11-01 or {option} 2026-11-01T12:00:00Z.",
        ) from None
    return typed


def future_time(text: str, option: str, zone_name: str | None) -> str:
    """A moment for the API: in so long, the next time a clock shows this, or a date with a time.

    What says no zone of its own is meant in the zone that is given, or in UTC.
    """
    typed = text.strip()
    if _DURATION.fullmatch(typed.lower()):
        return (now() + timedelta(seconds=duration_s(typed, option))).isoformat()
    place = UTC if zone_name is None else zone(zone_name)
    try:
        found = _next(typed, place) if _CLOCK.fullmatch(typed) else datetime.fromisoformat(typed)
        found = (found if found.tzinfo else found.replace(tzinfo=place)).astimezone(UTC)
    except (ValueError, OverflowError):
        found = now()
    if found <= now():
        raise InvalidInput(
            f"{option} {text!r} is not a time to come.",
            hint=f"Write {option} 2h, {option} 18:30 or {option} 2026-11-01T18:30.",
        )
    return found.isoformat()


def _next(clock: str, place: tzinfo) -> datetime:
    """The next moment at which clocks of a zone show this."""
    here = now().astimezone(place)
    hour, minute, *second = (int(part) for part in clock.split(":"))
    wanted = here.replace(hour=hour, minute=minute, second=(second or [0])[0], microsecond=0)
    return wanted if wanted > here else wanted + timedelta(days=1)


def zone(name: str) -> tzinfo:
    """The time zone of this name, which must be one that this machine knows."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise InvalidInput(
            f"--timezone: {name!r} is not a time zone.",
            hint="Write one such as Europe/Berlin or UTC.",
        ) from None


def number(text: str, option: str) -> float:
    """A number; where it means seconds, a duration such as 10m will do."""
    try:
        found = float(text)
    except ValueError:
        if option.endswith(("-s", "-seconds")):
            return duration_s(text, option)
        found = math.nan
    if not math.isfinite(found):
        raise InvalidInput(
            f"{option} is not a number: {text!r}.", hint=f"Write {option} 100 or {option} 0.95."
        )
    return found


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


def agent(text: str, option: str) -> str | None:
    """An agent's name; auto is the agent that this was called by, or the configured one."""
    if text != "auto":
        return not_empty(text, option)
    return next((name for name, marks in _CALLERS.items() if marks & os.environ.keys()), None)


def mcp_servers(entries: Iterable[str], option: str) -> dict[str, Any]:
    """NAME=COMMAND, split as a shell would, or NAME=URL, as the API takes them."""
    servers: dict[str, Any] = {}
    for entry in entries:
        name, given, value = entry.partition("=")
        # What comes after the sign may hold a secret, so only the name is shown.
        named = given and value.strip() and _SERVER_NAME.fullmatch(name)
        needs = f"{option} {name!r} needs a name of letters, digits, - and _, and a server."
        example = f'Write {option} docs="npx -y some-server" or {option} docs=https://…'
        refuse(
            (not named, needs, example),
            (name in servers, f"{option} {name} was given twice.", "Name each server once."),
        )
        servers[name] = _server(f"{option} {name}", value.strip())
    return servers


def _server(option: str, value: str) -> dict[str, Any]:
    if re.match(r"https?://", value):
        return {"url": value}
    try:
        return {"command": shlex.split(value)}
    except ValueError as error:
        raise InvalidInput(
            f"{option}: the command cannot be read: {str(error).lower()}.",
            hint="Close every quotation mark.",
        ) from None


def environment(entries: Iterable[str], option: str = "--env") -> dict[str, str]:
    """NAME=VALUE as given, NAME alone with its value in our own environment."""
    chosen = {}
    for entry in entries:
        name, given, value = entry.partition("=")
        # The entry may hold a secret, so only the part before the sign is shown.
        no_name, unset = f"{option} {name!r} is not a variable name.", name not in os.environ
        not_set = f"{option} {name}: this variable is not set here."
        refuse(
            (
                not _ENV_NAME.fullmatch(name),
                no_name,
                f"Write {option} NAME=VALUE or {option} NAME.",
            ),
            (not given and unset, not_set, f"Write {option} {name}=VALUE, or export it first."),
        )
        chosen[name] = value if given else os.environ[name]
    return chosen


def pairs(entries: Iterable[str], option: str) -> dict[str, str]:
    """KEY=VALUE pairs, in whose values further equal signs may stand, or objects of texts."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.lstrip().startswith("{"):
            value = json_or_text(entry, option)
            if not all(isinstance(item, str) for item in value.values()):
                raise InvalidInput(
                    f"{option} holds texts only.", hint=f"Write {option} NAME=VALUE."
                )
            found |= value
            continue
        key, given, text = entry.partition("=")
        key, no_pair = key.strip(), f"{option} {entry!r} is not a pair."
        refuse(
            (not given or not key, no_pair, f"Write {option} KEY=VALUE."),
            (key in found, f"{option} {key} is there twice.", f"Write each NAME of {option} once."),
        )
        found[key] = text
    return found


def json_or_text(text: str, option: str) -> Any:
    """JSON where it looks like it; a plain text is left to the pattern, as a short form."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{option} is not JSON: {error}.") from None


def json_object(text: str, option: str) -> dict[str, Any]:
    """An object that holds something: as it was typed, or in the file of this name."""
    hint = 'It is an object, such as {"type": "object", "properties": {…}}.'
    is_typed = text.lstrip().startswith("{")
    shown = option if is_typed else f"{option} {text}"
    try:
        found = json.loads(text if is_typed else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            f"{shown} cannot be read: {error.strerror}.", hint="Check its name."
        ) from None
    except ValueError as error:
        raise InvalidInput(f"{shown} is not JSON: {error}.", hint=hint) from None
    if not isinstance(found, dict) or not found:
        raise InvalidInput(f"{shown} is not a schema.", hint=hint)
    return found


def texts_or_objects(entries: Iterable[str], option: str) -> list[Any]:
    """Texts that were repeated, separated by commas, or both, and objects in JSON."""
    found: list[Any] = []
    for entry in entries:
        is_object = entry.lstrip().startswith("{")
        found += [json_or_text(entry, option)] if is_object else separated([entry], option)
    return found


def separated(entries: Iterable[str], what: str) -> list[str]:
    """Values that were repeated, separated by commas, or both, in their order.

    An empty one is refused: in a script it is what an earlier command failed to print.
    """
    return [not_empty(part.strip(), what) for entry in entries for part in entry.split(",")]


def listed(entries: Iterable[str], what: str) -> list[str]:
    """Values that were repeated, separated by commas, or both; each counts once."""
    return list(dict.fromkeys(separated(entries, what)))


def not_empty(text: str, what: str) -> str:
    """The text itself, which must hold something."""
    if not text.strip():
        raise InvalidInput(
            f"{what} is empty.",
            hint="Give it a value; perhaps an earlier command failed to print one.",
        )
    return text


def optional_text(text: str | None, what: str) -> str | None:
    """The text itself, which must hold something if it is given."""
    return None if text is None else not_empty(text, what)
