"""What a bridge says: Kapelle's event lines on standard output, each at once."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


def say(kind: str, text: str = "", name: str = "", **data: Any) -> None:
    """Print one event; ASCII only, so that neither locale nor half a surrogate pair matters."""
    given = {"kind": kind, "text": text, "name": name, "data": data}
    print(json.dumps({key: value for key, value in given.items() if value}), flush=True)


class Failed(Exception):
    """Why there is no answer: name is a FailureClass where that is certain, data is ErrorData."""

    def __init__(self, text: str, name: str = "", **data: Any) -> None:
        super().__init__(text)
        self.name = name
        self.data = {key: value for key, value in data.items() if value is not None}


def run(ask: Callable[[], None]) -> int:
    """The exit code of asking: 0 after a result, 1 after an error."""
    try:
        ask()
    except Failed as failed:
        say("error", str(failed), failed.name, **failed.data)
        return 1
    return 0


class Answer:
    """Passes a streaming answer on in whole lines, and as a result when it is complete."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._unsaid: list[str] = []

    def add(self, text: str) -> None:
        self._texts.append(text)
        before, newline, after = text.rpartition("\n")
        if newline:
            say("text", "".join(self._unsaid) + before)
            self._unsaid = []
        if after:
            self._unsaid.append(after)

    def flush(self) -> None:
        """Say the line that was not yet whole."""
        if self._unsaid:
            say("text", "".join(self._unsaid))
            self._unsaid = []

    def finish(self, why_empty: str = "") -> None:
        self.flush()
        whole = "".join(self._texts)
        if not whole.strip():
            raise Failed(why_empty or "The model gave an empty answer.", "task")
        say("result", whole)


class Arguments(argparse.ArgumentParser):
    """What both bridges are called with; a wrong argument is an error that is told as one."""

    def __init__(self) -> None:
        super().__init__(allow_abbrev=False)
        self.add_argument("--model", required=True)
        self.add_argument("--system-file", type=Path)
        self.add_argument("--timeout", type=seconds, default=600.0)

    def error(self, message: str) -> NoReturn:
        say("error", f"The arguments, extra_args among them, do not fit: {message}", "environment")
        sys.exit(2)


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError(text)
    return value


def prompt_given() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def system_given(file: Path | None) -> str | None:
    return file.read_text(encoding="utf-8") if file else None
