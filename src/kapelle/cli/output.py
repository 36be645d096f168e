"""Where words go: data on stdout, talk and errors on stderr, JSON in one shape."""

import errno
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

from kapelle.cli.format import clean, clean_painted, shown
from kapelle.domain.errors import InvalidInput, KapelleError


def data(text: str) -> None:
    """Print a line for programs and people on stdout."""
    sys.stdout.write(plain_line(text) + "\n")


def plain_line(text: str) -> str:
    """Return a text as a line for stdout, with short ids on a terminal."""
    return shown(clean(text))


def say(text: str) -> None:
    """A remark for the person watching, on stderr."""
    complain(shown(clean(text)))


def complain(line: str) -> None:
    """A line on stderr; one that nobody can read does not change what became of the work."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        give_up(sys.stderr)


def write(lines: Iterable[str]) -> None:
    """Lines on stdout, in their colours; whatever else could steer a terminal is taken out."""
    sys.stdout.writelines(f"{clean_painted(line)}\n" for line in lines)


def document(value: Any) -> None:
    """One JSON document; only ASCII, so that nothing in it can steer a terminal."""
    sys.stdout.write(json.dumps(value, indent=2 if sys.stdout.isatty() else None) + "\n")


def json_line(value: Any) -> None:
    """One JSON object of a stream, seen by the reader at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def give_up(stream: TextIO) -> None:
    """Drop what a stream could not take, or the interpreter complains of it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_streams() -> None:
    """Put /dev/null where a standard stream was closed before we began.

    The lowest free descriptor is the closed one, so no socket of ours takes its place.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def lenient_streams() -> None:
    """Keep an ASCII terminal or odd bytes in a file name from ending a command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


# A file that is already open does not tell its name when it cannot be written.
_FROM_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
_HEADER_VALUE = re.compile(r"(Invalid header value|Bearer) .*")


def wants_json(arguments: list[str]) -> bool:
    """Whether --json was among the options, known even when parsing failed."""
    if "--" in arguments:
        options = arguments[: arguments.index("--")]
    else:
        options = arguments
    return "--json" in options


def show_error(error: KapelleError, *, as_json: bool) -> None:
    """Print an error on stderr: what is wrong, and in a second line what to type instead."""
    if as_json:
        fields = {"code": error.code, "message": error.message, "hint": error.hint}
        complain(json.dumps({"error": fields}))
        return
    text = error.message.strip()
    if text and not text.endswith((".", "!", "?", ":", "…")):
        text += "."
    say(f"error: {text}")
    if error.hint:
        say(f"hint: {error.hint}")


def system_error(error: OSError) -> KapelleError:
    """What the system refused, as a sentence: it is no failure of the program."""
    try:
        # What could not be written is still there, so a broken stdout fails once more.
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
    """An unforeseen failure: the traceback goes to a file, a sentence to the person."""
    what = _without_headers(f"internal error: {type(error).__name__}: {error}")
    try:
        from kapelle.home import Home

        path = Home.default().root / "cli-error.log"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(_without_headers("".join(traceback.format_exception(error))) + "\n")
    except Exception:
        return KapelleError(what)
    return KapelleError(what, hint=f"Details are in {path}.")


def _without_headers(text: str) -> str:
    """The text without the values of headers, one of which is the token."""
    return _HEADER_VALUE.sub(r"\1 …", text)
