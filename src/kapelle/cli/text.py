"""Text that came from agents, made harmless before it reaches a terminal."""

import re

_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # OSC and kin
    r"|\x1b[ -/]*[0-~]"  # the short ones, and the beginning of unfinished ones
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DECEPTIVE = re.compile(r"[\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """The text without anything that could steer a terminal; bidi controls become visible."""
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    text = _ESCAPE_SEQUENCE.sub("", text)
    # A progress bar returns the carriage; dropping that would glue its states together.
    text = text.replace("\r", "\n")
    text = _CONTROL.sub("", text)
    return _DECEPTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str, width: int | None = None) -> str:
    """The cleaned text on a single line, cut to a width."""
    line = " ".join(clean(text).split())
    if width is not None and len(line) > width:
        return line[: max(width - 1, 0)] + "…"
    return line


def tail(text: str, lines: int) -> list[str]:
    """The last lines of the cleaned text."""
    return clean(text).rstrip("\n").split("\n")[-lines:]
