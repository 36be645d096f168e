"""Text of any origin made fit for prompts, titles and sentences."""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

_LONGEST_SHOWN = 60
_LONGEST_LINE = 300
_SHOWN_FILES = 3


def make_storable(text: str) -> str:
    """The text without what neither prompt nor database may hold: NUL, half a surrogate pair."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def make_title(text: str, longest: int = 200) -> str:
    """The text as one printable line that is short enough for a title."""
    line = re.sub(r"\s+", " ", text).strip()
    return excerpt("".join(letter for letter in line if letter.isprintable()), longest)


def take_first_line(text: str, longest: int = 80) -> str:
    """The first line of a text as a title; empty if there is none."""
    lines = text.strip().splitlines()
    if lines:
        return make_title(lines[0], longest)
    return ""


def excerpt(text: str, longest: int = 500) -> str:
    """The beginning of a text, for events and the like."""
    if len(text) <= longest:
        return text
    return text[: longest - 1] + "…"


def cut(value: Any, longest: int) -> Any:
    """A value of JSON with every text in it cut to an excerpt."""
    if isinstance(value, dict):
        return {key: cut(item, longest) for key, item in value.items()}
    if isinstance(value, list):
        return [cut(item, longest) for item in value]
    if isinstance(value, str):
        return excerpt(value, longest)
    return value


def shorten_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return the shortest end of each path that no other path has."""
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
    """The noun with its number: 1 iteration, 2 iterations."""
    if number == 1:
        return f"{number:,} {noun}"
    return f"{number:,} {noun}s"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """A question after the name that is most like another; empty if none is."""
    # A program is rarely asked this, and should not pay for it when it starts.
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 1, 0.6)
    if near:
        return f"Did you mean {near[0]}?"
    return ""


def format_value(value: Any) -> str:
    """A value in a sentence: short, on one line, with nothing that cannot be printed."""
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
    """A text as it is, or what stands for what in it cannot be printed; never very long."""
    cut = excerpt(text, _LONGEST_LINE)
    if cut.isprintable():
        return cut
    return ascii(cut)[1:-1]


def split_search_terms(text: str) -> list[list[str]]:
    """What is looked for: each word by itself, the words between quotation marks together.

    Nothing that is typed is an operator; words are cut where full-text indexes cut them.
    """
    parts = unicodedata.normalize("NFC", text).split('"')
    found: list[list[str]] = []
    for number, part in enumerate(parts):
        words = re.findall(r"[^\W_]{1,200}", part.lower())
        # A mark that nothing closes is none.
        quoted = number % 2 == 1 and number < len(parts) - 1
        found += [words] if quoted and words else [[word] for word in words]
    return found


def format_files(files: list[str]) -> str:
    """The first few of these, and how many more there are."""
    if len(files) > _SHOWN_FILES:
        more = f" and {len(files) - _SHOWN_FILES} more"
    else:
        more = ""
    return ", ".join(files[:_SHOWN_FILES]) + more


def relocate_path(path: str, old: str, new: str) -> str:
    """Return a path at or below old as it is called once old was moved to new."""
    if path == old or path.startswith(f"{old}/"):
        return new + path[len(old) :]
    return path
