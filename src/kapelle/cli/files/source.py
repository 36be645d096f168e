"""The text of a file or of standard input, with errors that fit a list of lines."""

import sys
from pathlib import Path
from typing import BinaryIO

from kapelle.cli.files.tree import Problem, Unusable

MAX_BYTES = 1_000_000


def is_stdin(path: Path) -> bool:
    return str(path) == "-"


def text_of(path: Path) -> str:
    """The UTF-8 text of a file, or of standard input for -; raises Unusable."""
    try:
        if is_stdin(path):
            raw = _limited(sys.stdin.buffer)
        else:
            with open(path, "rb") as stream:
                raw = _limited(stream)
    except IsADirectoryError:
        raise Unusable(Problem(1, "this is a directory", "Name a file in it.")) from None
    except FileNotFoundError:
        raise Unusable(Problem(1, "there is no such file", "Check the name.")) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Unusable(Problem(1, f"this cannot be read: {reason}", "Check the name.")) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        hint = "Convert it first, for example with `iconv -t utf-8`."
        raise Unusable(Problem(line, "this is not UTF-8 text", hint)) from None


def _limited(stream: BinaryIO) -> bytes:
    raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        hint = "Put material into files of the repository and name those in the prompts."
        raise Unusable(Problem(1, "this is larger than 1 MB", hint))
    return raw
