"""The prompt of a task: an argument, a file or stdin, and exactly one of them."""

import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from kapelle.domain.errors import InvalidInput

MAX_PROMPT_BYTES = 1_000_000
_WAYS = 'Write `kapelle run "what to do"`, `--prompt-file FILE`, or pipe it in with `-`.'


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt as text; refuses none, two at once, and more than 1 MB."""
    if argument is not None and file is not None:
        raise InvalidInput("The prompt was given twice, as an argument and as a file.", hint=_WAYS)
    if file is not None:
        raw = _from_file(file)
    elif argument is not None and argument != "-":
        raw = os.fsencode(argument)
    elif argument == "-" or _something_on_stdin():
        raw = _from_stdin()
    else:
        raise InvalidInput("There is no prompt.", hint=_WAYS)
    return _decoded(raw)


def _from_file(file: Path) -> bytes:
    try:
        with open(file, "rb") as stream:
            return _limited(stream)
    except OSError as error:
        raise InvalidInput(f"The prompt file {file} cannot be read: {error.strerror}.") from None


def _from_stdin() -> bytes:
    try:
        raw = _limited(sys.stdin.buffer)
    except OSError as error:
        raise InvalidInput(f"Standard input cannot be read: {error.strerror}.") from None
    if not raw.strip():
        raise InvalidInput("There is no prompt on stdin.", hint=_WAYS)
    return raw


def _something_on_stdin() -> bool:
    """Whether stdin is a pipe or a file; a terminal and /dev/null hold no prompt."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    return not stat.S_ISCHR(mode)


def _limited(stream: BinaryIO) -> bytes:
    return stream.read(MAX_PROMPT_BYTES + 1)


def _decoded(raw: bytes) -> str:
    if len(raw) > MAX_PROMPT_BYTES:
        raise InvalidInput(
            "The prompt is larger than 1 MB.",
            hint="Put the material into a file in the directory and name that file in the prompt.",
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"The prompt is not UTF-8 text (byte {error.start}).",
            hint="Convert it first, for example with `iconv -t utf-8`.",
        ) from None
    if not text.strip():
        raise InvalidInput("The prompt is empty.", hint=_WAYS)
    if "\0" in text:
        raise InvalidInput("The prompt holds a NUL byte, so it is not text.")
    return text
