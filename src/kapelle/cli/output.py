"""Where words go: data on stdout, talk on stderr, JSON in one shape."""

import json
import sys
from typing import Any

from kapelle.cli.text import clean


def data(text: str) -> None:
    """A line for programs and people, on stdout."""
    sys.stdout.write(clean(text) + "\n")


def say(text: str) -> None:
    """A remark for the person watching, on stderr."""
    sys.stderr.write(clean(text) + "\n")
    sys.stderr.flush()


def document(value: Any) -> None:
    """One JSON document; only ASCII, so that nothing in it can steer a terminal."""
    sys.stdout.write(json.dumps(value, indent=2 if sys.stdout.isatty() else None) + "\n")


def json_line(value: Any) -> None:
    """One JSON object of a stream, seen by the reader at once."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def lenient_streams() -> None:
    """Keep an ASCII terminal or odd bytes in a file name from ending a command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
