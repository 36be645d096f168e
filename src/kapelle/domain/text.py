"""Text helpers: clean and shorten text of any origin, and format counts, values and lists."""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

_LONGEST_SHOWN = 60
_LONGEST_LINE = 300
_SHOWN_FILES = 3


def make_storable(text: str) -> str:
    """Replace characters that neither prompts nor databases accept: NUL and lone surrogates."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def make_title(text: str, longest: int = 200) -> str:
    """Return a text as one printable line, short enough for a title."""
    line = re.sub(r"\s+", " ", text).strip()
    return excerpt("".join(letter for letter in line if letter.isprintable()), longest)


def take_first_line(text: str, longest: int = 80) -> str:
    """Return the first line of a text as a title; an empty string for an empty text."""
    lines = text.strip().splitlines()
    if lines:
        return make_title(lines[0], longest)
    return ""


def excerpt(text: str, longest: int = 500) -> str:
    """Return the beginning of a text, for example for events."""
    if len(text) <= longest:
        return text
    return text[: longest - 1] + "…"


def cut(value: Any, longest: int) -> Any:
    """Return a JSON value with every text in it shortened."""
    if isinstance(value, dict):
        return {key: cut(item, longest) for key, item in value.items()}
    if isinstance(value, list):
        return [cut(item, longest) for item in value]
    if isinstance(value, str):
        return excerpt(value, longest)
    return value


def shorten_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique ending of each path, which serves as its name."""
    parts = {path: [part for part in path.split("/") if part] or [path] for path in paths}
    names: dict[str, str] = {}
    for path, own in parts.items():
        length = 1
        while length < len(own) and any(
            other[-length:] == own[-length:] for key, other in parts.items() if key != path
        ):
            length += 1
        names[path] = "/".join(own[-length:])
    return names


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 iteration, 2 iterations."""
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {noun}s"


def suggest_name(name: str, candidates: Iterable[str]) -> str:
    """Return "Did you mean …?" for the most similar name; an empty string if none is similar."""
    # Imported here because few commands need it, and all would start slower.
    from difflib import get_close_matches

    similar = get_close_matches(name, list(candidates), 1, 0.6)
    if similar:
        return f"Did you mean {similar[0]}?"
    return ""


def format_value(value: Any) -> str:
    """Return a value for a sentence: short, on one line and printable."""
    if isinstance(value, dict):
        if value:
            return f"an object with {len(value)} keys"
        return "an empty object"
    if isinstance(value, list):
        if value:
            return f"a list of {len(value)}"
        return "an empty list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        cut = excerpt(value, _LONGEST_SHOWN)
        if cut.isprintable():
            return repr(cut)
        return ascii(cut)
    return make_printable(str(value))


def make_printable(text: str) -> str:
    """Return a shortened text, with escapes for characters that cannot be printed."""
    cut = excerpt(text, _LONGEST_LINE)
    if cut.isprintable():
        return cut
    return ascii(cut)[1:-1]


def split_search_terms(text: str) -> list[list[str]]:
    """Split a search text into terms: single words, and the words between quotation marks.

    Nothing in the text is an operator. Words end where the full-text indexes end them.
    """
    parts = unicodedata.normalize("NFC", text).split('"')
    terms: list[list[str]] = []
    for number, part in enumerate(parts):
        words = re.findall(r"[^\W_]{1,200}", part.lower())
        # The last quotation mark does not count if no other one closes it.
        is_quotation = number % 2 == 1 and number < len(parts) - 1
        if is_quotation and words:
            terms.append(words)
        else:
            terms += [[word] for word in words]
    return terms


def format_files(files: list[str]) -> str:
    """Return the first few file names, and the number of the others."""
    names = ", ".join(files[:_SHOWN_FILES])
    if len(files) > _SHOWN_FILES:
        return f"{names} and {len(files) - _SHOWN_FILES} more"
    return names


def relocate_path(path: str, old: str, new: str) -> str:
    """Return the new path of a file after old was moved to new; other paths stay as they are."""
    if path == old or path.startswith(f"{old}/"):
        return new + path[len(old) :]
    return path
