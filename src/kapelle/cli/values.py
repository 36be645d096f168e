"""Typed words as values for the API, and texts for agents from an argument, a file or stdin."""

import json
import math
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, TypeVar

from kapelle.cli.figures import now
from kapelle.domain.errors import InvalidInput
from kapelle.domain.times import format_duration, parse_duration, parse_moment

Value = TypeVar("Value")

# Variables that agents set in the environment of the commands that they execute.
_AGENT_VARIABLES = {
    "claude": {"CLAUDECODE", "CLAUDE_CODE", "CLAUDE_SESSION_ID"},
    "codex": {"CODEX_RUN_ID", "CODEX_SESSION_ID", "CODEX_SANDBOX"},
    "gemini": {"GEMINI_CLI"},
    "opencode": {"OPENCODE", "OPENCODE_RUN_ID"},
    "qwen": {"QWEN_CODE"},
}
MAX_DURATION_S = 31_536_000.0
MAX_PROMPT_BYTES = 1_000_000


def refuse(*mistakes: tuple[object, str, str]) -> None:
    """Raise InvalidInput for the first mistake that was made.

    A mistake is a condition that is true if it was made, a message and a hint.
    """
    for is_mistake, message, hint in mistakes:
        if is_mistake:
            raise InvalidInput(message, hint=hint)


def duration_s(text: str, option: str = "the duration", *, least: float | None = None) -> float:
    """Return the seconds of a duration such as 90, 90s, 10m, 2h or 1h30m.

    The duration must be at least `least`, or more than 0 without it.
    """
    typed = text.strip().lower()
    hint = "Write it like 90, 90s, 10m or 2h."
    try:
        seconds = float(typed)
    except ValueError:
        parsed = parse_duration(typed)
        seconds = math.nan if parsed is None else parsed
    minimum = "more than 0"
    if least:
        minimum = f"at least {format_duration(least)}"
    outside = f"{option} must be {minimum} and at most a year, not {text!r}."
    refuse(
        (not math.isfinite(seconds), f"{option} is not a duration: {text!r}.", hint),
        (not (least or 0) <= seconds <= MAX_DURATION_S, outside, hint),
        (seconds == 0 and least is None, outside, hint),
    )
    return seconds


def since(text: str | None, option: str) -> str | None:
    """Return a past moment for the API: a duration ago (7d, 12h), a date, or a time."""
    if text is None:
        return None
    typed = text.strip()
    if parse_duration(typed) is not None:
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
    """Return a future moment for the API: after a duration, at a time of day, or on a date.

    A time without a zone is one of the named zone, or of UTC.
    """
    typed = text.strip()
    if parse_duration(typed) is not None:
        return (now() + timedelta(seconds=duration_s(typed, option))).isoformat()
    place = UTC if zone_name is None else zone(zone_name)
    try:
        moment = parse_moment(typed, now(), place)
    except (ValueError, OverflowError):
        moment = now()
    if moment <= now():
        raise InvalidInput(
            f"{option} {text!r} is not a time in the future.",
            hint=f"Write {option} 2h, {option} 18:30 or {option} 2030-01-31T18:30.",
        )
    return moment.isoformat()


def is_time(text: str) -> bool:
    """Return whether a text can only be a duration, a time of day or a date, and not an id."""
    if text.strip().isdigit():
        return False
    if parse_duration(text) is not None:
        return True
    try:
        parse_moment(text, now(), UTC)
    except (ValueError, InvalidInput):
        return False
    return True


def zone(name: str) -> tzinfo:
    """Return the time zone of a name, which this machine must know."""
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
    """Return a number; an option of seconds also takes a duration such as 10m."""
    try:
        parsed = float(text)
    except ValueError:
        if option.endswith(("-s", "-seconds")):
            return duration_s(text, option)
        parsed = math.nan
    if not math.isfinite(parsed):
        raise InvalidInput(
            f"{option} is not a number: {text!r}.", hint=f"Write {option} 100 or {option} 0.95."
        )
    return parsed


def usd(text: str, option: str) -> float:
    """Return US dollars from 5, 0.25 or $5; the daemon knows the limits."""
    return number(text.strip().removeprefix("$"), option)


def choice(option: str, value: str | None, choices: Sequence[str]) -> str | None:
    """Return a value, which must be one of a few."""
    if value is not None and value not in choices:
        *others, last = choices
        raise InvalidInput(
            f"{option} cannot be {value!r}.", hint=f"Use {', '.join(others)} or {last}."
        )
    return value


def agent(text: str, option: str) -> str | None:
    """Return the name of an agent; for auto the agent that calls Kapelle, or None for the default.

    Agents are recognized by the variables that they set for their commands.
    """
    if text != "auto":
        return not_empty(text, option)
    for name, variables in _AGENT_VARIABLES.items():
        if variables & os.environ.keys():
            return name
    return None


def mcp_servers(entries: Iterable[str], option: str) -> dict[str, Any]:
    """Return MCP servers from NAME=COMMAND, split as by a shell, or NAME=URL."""
    example = f'Write {option} docs="npx -y some-server" or {option} docs=https://…'
    servers: dict[str, Any] = {}
    for name, value in _split_pairs(entries, option, example):
        server = (value or "").strip()
        refuse((not server, f"{option} {name!r} needs a server.", example))
        if re.match(r"https?://", server):
            servers[name] = {"url": server}
            continue
        try:
            servers[name] = {"command": shlex.split(server)}
        except ValueError as error:
            message = f"{option} {name}: the command cannot be read: {str(error).lower()}."
            raise InvalidInput(message, hint="Close every quotation mark.") from None
    return servers


def environment(entries: Iterable[str], option: str = "--env") -> dict[str, str]:
    """Return variables from NAME=VALUE; NAME alone has the value of our own environment."""
    variables = {}
    for name, value in _split_pairs(
        entries, option, f"Write {option} NAME=VALUE or {option} NAME."
    ):
        if value is None:
            hint = f"Write {option} {name}=VALUE, or export it first."
            is_unset = name not in os.environ
            refuse((is_unset, f"{option} {name}: this variable is not set here.", hint))
            value = os.environ[name]
        variables[name] = value
    return variables


def pairs(entries: Iterable[str], option: str) -> dict[str, str]:
    """Return pairs from NAME=VALUE and from JSON objects of texts."""
    hint = f"Write {option} NAME=VALUE."
    values: dict[str, str] = {}
    plain = []
    for entry in entries:
        if not entry.lstrip().startswith("{"):
            plain.append(entry)
            continue
        fields = json_or_text(entry, option)
        has_others = not all(isinstance(value, str) for value in fields.values())
        refuse((has_others, f"{option} takes texts only.", hint))
        values.update(fields)
    for name, value in _split_pairs(plain, option, hint):
        refuse((value is None, f"{option} {name!r} is not a pair.", hint))
        values[name] = value or ""
    return values


def _split_pairs(
    entries: Iterable[str], option: str, hint: str
) -> Iterator[tuple[str, str | None]]:
    """Return names with the values behind an equal sign; each name may stand there once.

    A value may be a secret, so errors show only the name.
    """
    names = set()
    for entry in entries:
        name, equal_sign, value = entry.partition("=")
        name = name.strip()
        refuse(
            (not name, f"{option} needs a name.", hint),
            (name in names, f"{option} {name} is there twice.", "Write each name once."),
        )
        names.add(name)
        yield name, value if equal_sign else None


def json_or_text(text: str, option: str) -> Any:
    """Return the JSON value that a text looks like, else the text."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{option} is not JSON: {error}.") from None


def json_object(text: str, option: str) -> dict[str, Any]:
    """Return a JSON object that is not empty, from its text or from a file of this name."""
    hint = 'It is an object, such as {"type": "object", "properties": {…}}.'
    is_inline = text.lstrip().startswith("{")
    name = option if is_inline else f"{option} {text}"
    try:
        content = text if is_inline else Path(text).read_text(encoding="utf-8")
        value = json.loads(content)
    except OSError as error:
        raise InvalidInput(
            f"{name} cannot be read: {error.strerror}.", hint="Check its name."
        ) from None
    except ValueError as error:
        raise InvalidInput(f"{name} is not JSON: {error}.", hint=hint) from None
    if not isinstance(value, dict) or not value:
        raise InvalidInput(f"{name} is not a schema.", hint=hint)
    return value


def texts_or_objects(entries: Iterable[str], option: str) -> list[Any]:
    """Return texts that were repeated or separated by commas, and JSON objects."""
    items: list[Any] = []
    for entry in entries:
        if entry.lstrip().startswith("{"):
            items.append(json_or_text(entry, option))
        else:
            items += separated([entry], option)
    return items


def separated(entries: Iterable[str], what: str) -> list[str]:
    """Return values that were repeated, separated by commas, or both.

    Raises InvalidInput for an empty value: in a script it comes from a command that failed.
    """
    items = []
    for entry in entries:
        items += [not_empty(part.strip(), what) for part in entry.split(",")]
    return items


def listed(entries: Iterable[str], what: str) -> list[str]:
    """Return values that were repeated, separated by commas, or both; each once."""
    return list(dict.fromkeys(separated(entries, what)))


def not_empty(text: str, what: str) -> str:
    """Return a text; raises InvalidInput if it is empty."""
    if not text.strip():
        raise InvalidInput(
            f"{what} is empty.",
            hint="Give it a value; perhaps an earlier command failed to print one.",
        )
    return text


def optional(read: Callable[[str, str], Value], text: str | None, option: str) -> Value | None:
    """Return the value of a text by a reader of this module; None without a text."""
    if text is None:
        return None
    return read(text, option)


def read_prompt(
    argument: str | None, file: Path | None, hint: str = "", noun: str = "prompt"
) -> str:
    """Return a prompt from an argument, a file, or stdin (-).

    Raises InvalidInput without a prompt, for two at once, and for more than 1 MB. The hint tells
    how to give a prompt; noun is its name in the messages.
    """
    if argument is not None and file is not None:
        raise InvalidInput(f"The {noun} was given twice, as an argument and as a file.", hint=hint)
    is_stdin = argument == "-" or file == Path("-")
    if file is not None and not is_stdin:
        content = read_bytes(file, f"The {noun} file {file}", MAX_PROMPT_BYTES)
    elif argument is not None and not is_stdin:
        content = os.fsencode(argument)
    elif is_stdin or _stdin_has_content():
        content = read_bytes(None, "Standard input", MAX_PROMPT_BYTES)
        if not content.strip():
            raise InvalidInput(f"There is no {noun} on stdin.", hint=hint)
    else:
        raise InvalidInput(f"There is no {noun}.", hint=hint)
    text = _decode(content, noun)
    if not text.strip():
        raise InvalidInput(f"The {noun} is empty.", hint=hint)
    return text


def read_prompts(prompts: Sequence[Any], hint: str, first: int) -> list[Any]:
    """Return the prompts of steps, numbered from the first; one of them may come from stdin.

    A step that is an object stays as it is.
    """
    if list(prompts).count("-") > 1:
        raise InvalidInput(
            "Only one step can come from stdin.", hint="Write the prompt of each other step."
        )
    steps = []
    for position, prompt in enumerate(prompts, first):
        if isinstance(prompt, str):
            steps.append(read_prompt(prompt, None, hint, f"prompt of step {position}"))
        else:
            steps.append(prompt)
    return steps


def read_bytes(file: Path | None, what: str, limit: int) -> bytes:
    """Return the content of a file or of stdin.

    Content over the limit is cut one byte behind it, so that the caller sees that it is too long.
    """
    try:
        with open(file, "rb") if file else nullcontext(sys.stdin.buffer) as stream:
            return stream.read(limit + 1)
    except OSError as error:
        hint = "Check its name." if file else None
        raise InvalidInput(f"{what} cannot be read: {error.strerror}.", hint=hint) from None


def _stdin_has_content() -> bool:
    """Return whether stdin is a pipe or a file; a terminal and /dev/null contain no prompt."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    return not stat.S_ISCHR(mode)


def _decode(content: bytes, noun: str) -> str:
    """Return content as text; raises InvalidInput if it is too long or no text."""
    if len(content) > MAX_PROMPT_BYTES:
        raise InvalidInput(
            f"The {noun} is larger than 1 MB.",
            hint=f"Put the material into a file in the directory and name that in the {noun}.",
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"The {noun} is not UTF-8 text (byte {error.start}).",
            hint="Convert it first, for example with `iconv -t utf-8`.",
        ) from None
    if "\0" in text:
        raise InvalidInput(f"The {noun} contains a NUL byte, so it is not text.")
    return text
