"""A prompt, or another text for agents: an argument, a file or stdin, and exactly one of them."""

import os
import stat
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput

MAX_PROMPT_BYTES = 1_000_000


def read_prompt(
    argument: str | None, file: Path | None, hint: str = "", noun: str = "prompt"
) -> str:
    """The prompt as text; refuses none, two at once, and more than 1 MB.

    The hint tells how to give one, and noun what it is called in what is said of it.
    """
    if argument is not None and file is not None:
        raise InvalidInput(f"The {noun} was given twice, as an argument and as a file.", hint=hint)
    if file is not None:
        raw = read_bytes(file, f"The {noun} file {file}", MAX_PROMPT_BYTES)
    elif argument is not None and argument != "-":
        raw = os.fsencode(argument)
    elif argument == "-" or _something_on_stdin():
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
