"""Questions of a run, asked in the terminal: the words on stderr, the answer from stdin."""

import sys
from typing import Any

from kapelle.cli.output import say
from kapelle.cli.text import clean, one_line


def can_ask() -> bool:
    """Whether somebody is there to read a question and to type an answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def read_line(words: str) -> str | None:
    """What is typed behind the words, or None at the end of input."""
    sys.stderr.write(clean(words))
    sys.stderr.flush()
    typed = sys.stdin.readline()
    if not typed:
        sys.stderr.write("\n")
        return None
    return typed.rstrip("\n")


def ask(question: dict[str, Any]) -> str | None:
    """A person's answer; an empty line is the default, or the question is asked again."""
    default = question["default"]
    say(f"? {clean(question['text'])}")
    known = f" [{one_line(default, 60)}]" if default is not None else ""
    while True:
        typed = read_line(f"Your answer{known}: ")
        if typed is None:
            return None
        if typed.strip():
            return typed
        if default is not None:
            return str(default)
