"""Where words go: data on stdout, talk on stderr, JSON in one shape."""

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

from kapelle.cli.format import clean, shown


def data(text: str) -> None:
    """A line for programs and people, on stdout."""
    sys.stdout.write(shown(clean(text)) + "\n")


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


def show(value: Any, as_json: bool, lines: Iterable[str]) -> None:
    """What was found: as JSON, or as lines for people."""
    if as_json:
        document(value)
    else:
        write(lines)


def write(lines: Iterable[str]) -> None:
    """Lines that are ready for the terminal, on stdout."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


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
