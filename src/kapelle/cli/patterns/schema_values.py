"""Texts from the command line as values of a JSON schema."""

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

from kapelle.cli.values import choice, duration_s, key_values
from kapelle.domain.errors import InvalidInput

# "any" is what the schema leaves open, or describes as one of several shapes.
Kind = Literal["text", "integer", "number", "boolean", "object", "pairs", "any"]

_YES = frozenset({"true", "yes", "on", "1"})
_NO = frozenset({"false", "no", "off", "0"})


def parse(flag: str, kind: Kind, choices: Sequence[str], text: str) -> Any:
    """The value of a text for an option; what cannot be one gets a sentence."""
    match kind:
        case "boolean":
            return _boolean(flag, text)
        case "integer":
            return _integer(flag, text)
        case "number":
            return _number(flag, text)
        case "object" | "any":
            return _json_or_text(flag, text)
        case "pairs":
            return _pairs(flag, text)
        case "text":
            return choice(flag, text, choices) if choices else text


def _boolean(flag: str, text: str) -> bool:
    typed = text.strip().lower()
    if typed not in _YES | _NO:
        raise InvalidInput(f"{flag} is on or off, not {text!r}.", hint=f"Write {flag} alone.")
    return typed in _YES


def _integer(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(
            f"{flag} is a whole number, not {text!r}.", hint=f"Write {flag} 3."
        ) from None


def _number(flag: str, text: str) -> float:
    """A number; where it means seconds, a duration such as 10m will do."""
    try:
        number = float(text)
    except ValueError:
        if flag.endswith(("-s", "-seconds")):
            return duration_s(text, flag)
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(f"{flag} is a number, not {text!r}.", hint=f"Write {flag} 0.5.")
    return number


def _json_or_text(flag: str, text: str) -> Any:
    """JSON where it looks like it; a plain text is left to the pattern, as a short form."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{flag} is not JSON: {error}.") from None


def _pairs(flag: str, text: str) -> dict[str, str]:
    if not text.lstrip().startswith("{"):
        return key_values([text], flag)
    value = _json_or_text(flag, text)
    if not all(isinstance(item, str) for item in value.values()):
        raise InvalidInput(f"{flag} holds texts only.", hint=f"Write {flag} NAME=VALUE.")
    return dict(value)
