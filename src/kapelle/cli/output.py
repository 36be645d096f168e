"""Output: data on stdout, remarks and errors on stderr, JSON in one format."""

import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

from kapelle.cli.text import clean, clean_except_colours, shorten_ids_on_terminal
from kapelle.domain.errors import InvalidInput, KapelleError


def data(text: str) -> None:
    """Print a line for programs and people on stdout."""
    sys.stdout.write(plain_line(text) + "\n")


def plain_line(text: str) -> str:
    """Return a text as a line for stdout, with short ids on a terminal."""
    return shorten_ids_on_terminal(clean(text))


def say(text: str) -> None:
    """Print a remark for people on stderr."""
    complain(shorten_ids_on_terminal(clean(text)))


def complain(line: str) -> None:
    """Print a line on stderr as it is.

    A stderr that cannot be written does not change the outcome of a command.
    """
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        give_up(sys.stderr)


def write(lines: Iterable[str]) -> None:
    """Print lines on stdout, cleaned but for their colours."""
    for line in lines:
        sys.stdout.write(f"{clean_except_colours(line)}\n")


def document(value: object) -> None:
    """Print one JSON document; it is all ASCII, so that it cannot control a terminal."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(value, indent=indent) + "\n")


def json_line(value: object) -> None:
    """Print one JSON object of a stream, and flush it for the reader."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def give_up(stream: TextIO) -> None:
    """Discard the text that a stream could not write.

    Otherwise the interpreter would report an error when it ends.
    """
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_streams() -> None:
    """Open /dev/null in the place of each standard stream that was closed before the start.

    The lowest free descriptor is that of the closed stream, so that no socket gets it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def lenient_streams() -> None:
    """Print letters that the encoding of a terminal lacks as escapes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


# Errors while a file is written. They carry no file name, because the file is open already.
_FROM_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
_HEADER_VALUE = re.compile(r"(Invalid header value|Bearer) .*")


def wants_json(arguments: list[str]) -> bool:
    """Tell whether --json is among the options of a command line that may be wrong."""
    options = arguments
    if "--" in arguments:
        options = arguments[: arguments.index("--")]
    return "--json" in options


def show_error(error: KapelleError, *, as_json: bool) -> None:
    """Print an error on stderr: what is wrong, and in a second line what to type instead."""
    if as_json:
        fields = {"code": error.code, "message": error.message, "hint": error.hint}
        complain(json.dumps({"error": fields}))
        return
    message = error.message.strip()
    if message and not message.endswith((".", "!", "?", ":", "…")):
        message += "."
    say(f"error: {message}")
    if error.hint:
        say(f"hint: {error.hint}")


def system_error(error: OSError) -> KapelleError:
    """Return an error of the operating system as an error with a sentence for people."""
    try:
        # The text that could not be written is still buffered: a broken stdout fails again.
        sys.stdout.flush()
    except OSError as broken:
        give_up(sys.stdout)
        return InvalidInput(f"Standard output cannot be written: {broken.strerror}.")
    try:
        os.getcwd()
    except FileNotFoundError:
        return InvalidInput(
            "The current directory no longer exists.", hint="Change to another one first."
        )
    if error.filename is None and error.errno in _FROM_WRITING:
        return InvalidInput(f"{error.strerror}.")
    if error.filename is None or not error.strerror:
        return internal_error(error)
    return InvalidInput(f"{error.filename}: {error.strerror}.")


def internal_error(error: BaseException) -> KapelleError:
    """Return an unexpected exception as an error; its traceback is written to a file."""
    message = _without_headers(f"internal error: {type(error).__name__}: {error}")
    try:
        from kapelle.home import Home

        path = Home.default().root / "cli-error.log"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(_without_headers("".join(traceback.format_exception(error))) + "\n")
    except Exception:
        return KapelleError(message)
    return KapelleError(message, hint=f"Details are in {path}.")


def _without_headers(text: str) -> str:
    """Return the text without the values of HTTP headers: one of them is the token."""
    return _HEADER_VALUE.sub(r"\1 …", text)
