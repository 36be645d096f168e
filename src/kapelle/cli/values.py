"""What people type, turned into what the API takes: values of options, and texts for agents, which
are an argument, a file or stdin, and exactly one of them."""

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

from kapelle.cli.format import now
from kapelle.domain.errors import InvalidInput
from kapelle.domain.times import format_duration, parse_duration, parse_moment

Value = TypeVar("Value")

# What the agents set in the environment of the commands that they execute.
_CALLERS = {
    "claude": {"CLAUDECODE", "CLAUDE_CODE", "CLAUDE_SESSION_ID"},
    "codex": {"CODEX_RUN_ID", "CODEX_SESSION_ID", "CODEX_SANDBOX"},
    "gemini": {"GEMINI_CLI"},
    "opencode": {"OPENCODE", "OPENCODE_RUN_ID"},
    "qwen": {"QWEN_CODE"},
}
LONGEST_S = 31_536_000.0


def refuse(*mistakes: tuple[object, str, str]) -> None:
    """Raise the first of several mistakes that was made: whether it was, its words, what to type
    instead."""
    for is_made, words, hint in mistakes:
        if is_made:
            raise InvalidInput(words, hint=hint)


def duration_s(text: str, option: str = "the duration", *, least: float | None = None) -> float:
    """Seconds from 90, 90s, 10m, 2h or 1h30m: at least so many, else more than 0."""
    typed = text.strip().lower()
    hint = "Write it like 90, 90s, 10m or 2h."
    try:
        seconds = float(typed)
    except ValueError:
        found = parse_duration(typed)
        seconds = math.nan if found is None else found
    if least:
        some = f"at least {format_duration(least)}"
    else:
        some = "more than 0"
    outside = f"{option} must be {some} and at most a year, not {text!r}."
    refuse(
        (not math.isfinite(seconds), f"{option} is not a duration: {text!r}.", hint),
        (not (least or 0) <= seconds <= LONGEST_S, outside, hint),
        (seconds == 0 and least is None, outside, hint),
    )
    return seconds


def since(text: str | None, option: str) -> str | None:
    """A moment for the API: so long ago (7d, 12h), a date, or a time."""
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
    """A moment for the API: in so long, the next time a clock shows this, or a date with a time.

    What says no zone of its own is meant in the zone that is given, or in UTC.
    """
    typed = text.strip()
    if parse_duration(typed) is not None:
        return (now() + timedelta(seconds=duration_s(typed, option))).isoformat()
    place = UTC if zone_name is None else zone(zone_name)
    try:
        found = parse_moment(typed, now(), place)
    except (ValueError, OverflowError):
        found = now()
    if found <= now():
        raise InvalidInput(
            f"{option} {text!r} is not a time to come.",
            hint=f"Write {option} 2h, {option} 18:30 or {option} 2030-01-31T18:30.",
        )
    return found.isoformat()


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


def usd(text: str, option: str) -> float:
    """US dollars from 5, 0.25 or $5; how many they may be, the daemon says."""
    return number(text.strip().removeprefix("$"), option)


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
    example = f'Write {option} docs="npx -y some-server" or {option} docs=https://…'
    servers: dict[str, Any] = {}
    for name, value in _named(entries, option, example):
        told = (value or "").strip()
        refuse((not told, f"{option} {name!r} needs a server.", example))
        is_url = re.match(r"https?://", told)
        try:
            servers[name] = {"url": told} if is_url else {"command": shlex.split(told)}
        except ValueError as error:
            words = f"{option} {name}: the command cannot be read: {str(error).lower()}."
            raise InvalidInput(words, hint="Close every quotation mark.") from None
    return servers


def environment(entries: Iterable[str], option: str = "--env") -> dict[str, str]:
    """NAME=VALUE as given, NAME alone with its value in our own environment."""
    chosen = {}
    for name, value in _named(entries, option, f"Write {option} NAME=VALUE or {option} NAME."):
        hint = f"Write {option} {name}=VALUE, or export it first."
        unset = value is None and name not in os.environ
        refuse((unset, f"{option} {name}: this variable is not set here.", hint))
        chosen[name] = os.environ[name] if value is None else value
    return chosen


def pairs(entries: Iterable[str], option: str) -> dict[str, str]:
    """KEY=VALUE pairs, in whose values further equal signs may stand, or objects of texts."""
    objects = [json_or_text(entry, option) for entry in entries if entry.lstrip().startswith("{")]
    hint = f"Write {option} NAME=VALUE."
    texts = all(isinstance(value, str) for one in objects for value in one.values())
    refuse((not texts, f"{option} holds texts only.", hint))
    found: dict[str, str] = {name: value for one in objects for name, value in one.items()}
    plain = (entry for entry in entries if not entry.lstrip().startswith("{"))
    for name, value in _named(plain, option, hint):
        refuse((value is None, f"{option} {name!r} is not a pair.", hint))
        found[name] = value or ""
    return found


def _named(entries: Iterable[str], option: str, hint: str) -> Iterator[tuple[str, str | None]]:
    """Names with what stands behind an equal sign, each of them once.

    That may hold a secret, so only the name is ever shown.
    """
    seen = set()
    for entry in entries:
        name, given, value = entry.partition("=")
        name = name.strip()
        refuse(
            (not name, f"{option} needs a name.", hint),
            (name in seen, f"{option} {name} is there twice.", "Write each name once."),
        )
        seen.add(name)
        yield name, value if given else None


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
    if is_typed:
        shown = option
    else:
        shown = f"{option} {text}"
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


def optional(read: Callable[[str, str], Value], text: str | None, option: str) -> Value | None:
    """What was typed as one of these reads it; None where nothing was."""
    if text is None:
        return None
    return read(text, option)


MAX_PROMPT_BYTES = 1_000_000


def read_prompt(
    argument: str | None, file: Path | None, hint: str = "", noun: str = "prompt"
) -> str:
    """The prompt as text, from stdin for -; refuses none, two at once, and more than 1 MB.

    The hint tells how to give one, and noun what it is called in what is said of it.
    """
    if argument is not None and file is not None:
        raise InvalidInput(f"The {noun} was given twice, as an argument and as a file.", hint=hint)
    is_piped = argument == "-" or file == Path("-")
    if file is not None and not is_piped:
        raw = read_bytes(file, f"The {noun} file {file}", MAX_PROMPT_BYTES)
    elif argument is not None and not is_piped:
        raw = os.fsencode(argument)
    elif is_piped or _something_on_stdin():
        raw = read_bytes(None, "Standard input", MAX_PROMPT_BYTES)
        if not raw.strip():
            raise InvalidInput(f"There is no {noun} on stdin.", hint=hint)
    else:
        raise InvalidInput(f"There is no {noun}.", hint=hint)
    text = _decoded(raw, noun)
    if not text.strip():
        raise InvalidInput(f"The {noun} is empty.", hint=hint)
    return text


def read_prompts(prompts: Sequence[Any], hint: str, first: int) -> list[Any]:
    """The prompts of steps, numbered from the first; one of them may come from stdin.

    A step that is more than a prompt, an object, is left as it is.
    """
    if [*prompts].count("-") > 1:
        raise InvalidInput(
            "Only one step can come from stdin.", hint="Write the prompt of each other step."
        )
    return [
        read_prompt(prompt, None, hint, f"prompt of step {number}")
        if isinstance(prompt, str)
        else prompt
        for number, prompt in enumerate(prompts, first)
    ]


def read_bytes(file: Path | None, what: str, most: int) -> bytes:
    """What a file holds, or standard input; a byte more than the most tells that it is too long."""
    try:
        with open(file, "rb") if file else nullcontext(sys.stdin.buffer) as stream:
            return stream.read(most + 1)
    except OSError as error:
        hint = "Check its name." if file else None
        raise InvalidInput(f"{what} cannot be read: {error.strerror}.", hint=hint) from None


def _something_on_stdin() -> bool:
    """Whether stdin is a pipe or a file; a terminal and /dev/null hold no prompt."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    return not stat.S_ISCHR(mode)


def _decoded(raw: bytes, noun: str) -> str:
    if len(raw) > MAX_PROMPT_BYTES:
        raise InvalidInput(
            f"The {noun} is larger than 1 MB.",
            hint=f"Put the material into a file in the directory and name that in the {noun}.",
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"The {noun} is not UTF-8 text (byte {error.start}).",
            hint="Convert it first, for example with `iconv -t utf-8`.",
        ) from None
    if "\0" in text:
        raise InvalidInput(f"The {noun} holds a NUL byte, so it is not text.")
    return text
