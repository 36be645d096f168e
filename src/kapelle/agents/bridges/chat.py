"""One question to a model without tools, whoever provides it: arguments, answer, exit code."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from kapelle.agents.bridges.base import Failed, emit


class Arguments(argparse.ArgumentParser):
    """What a bridge to a model is called with; a wrong argument is an error event."""

    def __init__(self) -> None:
        super().__init__(allow_abbrev=False)
        self.add_argument("--model", required=True)
        self.add_argument("--system-file", type=Path)
        self.add_argument("--timeout", type=_seconds, default=600.0)

    def error(self, message: str) -> NoReturn:
        text = f"The arguments, extra_args among them, do not fit: {message}"
        emit("error", text, "environment")
        sys.exit(2)


def is_address(url: str) -> bool:
    """Whether requests can go to it; a password in it is refused, for logs show addresses."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return bool(fits) and "@" not in parts.netloc and is_plain


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError(text)
    return value


def exit_code(ask: Callable[[argparse.Namespace, str, str], None], parser: Arguments) -> int:
    """Ask with arguments, prompt and system prompt; 0 after a result, 1 after an error."""
    arguments = parser.parse_args()
    file: Path | None = arguments.system_file
    system = file.read_text(encoding="utf-8") if file else ""
    try:
        ask(arguments, sys.stdin.buffer.read().decode("utf-8", "replace"), system)
    except Failed as failed:
        failed.emit()
        return 1
    return 0


class Answer:
    """Passes a streaming answer on in whole lines, and as a result when it is complete."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._line: list[str] = []
        self.complete = False
        self.reason = ""  # why it ended, in the provider's own word

    def add(self, text: str) -> None:
        self._texts.append(text)
        before, newline, after = text.rpartition("\n")
        if newline:
            emit("text", "".join(self._line) + before)
            self._line = []
        if after:
            self._line.append(after)

    def flush(self) -> None:
        """Print the line that was not yet whole."""
        if self._line:
            emit("text", "".join(self._line))
            self._line = []

    def finish(
        self, refusals: Mapping[str, str], cut_off: Mapping[str, str], refused: str = ""
    ) -> None:
        """Print the result; the tables say for which reasons there is none, or less of it."""
        if not self.complete and not self.reason:
            raise Failed("The connection ended in the middle of the answer.", "environment")
        if self.reason in refusals:
            raise Failed(refusals[self.reason], "task")
        why_empty = cut_off.get(self.reason, "")
        if why_empty:
            emit("notice", why_empty)
        self.flush()
        whole = "".join(self._texts)
        if not whole.strip():
            raise Failed(why_empty or refused or "The model gave an empty answer.", "task")
        emit("result", whole)
