"""Text of any origin made fit for prompts and titles: models and commands write anything."""

import re

_LONGEST_TITLE = 200


def writable(text: str) -> str:
    """The text without what no prompt may hold: NUL and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def titled(text: str) -> str:
    """The text as one printable line that is short enough for a title."""
    line = re.sub(r"\s+", " ", text).strip()
    line = "".join(letter for letter in line if letter.isprintable())
    return line if len(line) <= _LONGEST_TITLE else line[: _LONGEST_TITLE - 1] + "…"


def counted(number: int, noun: str) -> str:
    """The noun with its number: 1 iteration, 2 iterations."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
