"""What bridges share: event lines, the error that ends an attempt, a model's streamed answer."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from kapelle.agents.base import AgentEvent, EventKind


def emit(
    kind: EventKind, text: str = "", name: str = "", data: Mapping[str, Any] | None = None
) -> None:
    """Print one event; ASCII only, so that neither locale nor half a surrogate pair matters."""
    print(json.dumps(AgentEvent(kind, text, name, data or {}).to_json()), flush=True)


class Failed(Exception):
    """Why there is no result: name is a FailureClass where that is certain, data is ErrorData."""

    def __init__(self, text: str, name: str = "", **data: Any) -> None:
        super().__init__(text)
        self.name = name
        self.data = {key: value for key, value in data.items() if value is not None}

    def emit(self) -> None:
        emit("error", str(self), self.name, self.data)


def exit_code(ask: Callable[[], None]) -> int:
    """The exit code of asking a model: 0 after a result, 1 after an error."""
    try:
        ask()
    except Failed as failed:
        failed.emit()
        return 1
    return 0


class Answer:
    """Passes a streaming answer on in whole lines, and as a result when it is complete."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._line: list[str] = []

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

    def finish(self, why_empty: str = "") -> None:
        self.flush()
        whole = "".join(self._texts)
        if not whole.strip():
            raise Failed(why_empty or "The model gave an empty answer.", "task")
        emit("result", whole)


class Arguments(argparse.ArgumentParser):
    """What the bridges to a model are called with; a wrong argument is an error event."""

    def __init__(self) -> None:
        super().__init__(allow_abbrev=False)
        self.add_argument("--model", required=True)
        self.add_argument("--system-file", type=Path)
        self.add_argument("--timeout", type=_seconds, default=600.0)

    def error(self, message: str) -> NoReturn:
        text = f"The arguments, extra_args among them, do not fit: {message}"
        emit("error", text, "environment")
        sys.exit(2)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError(text)
    return value


def prompt_from_stdin() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def system_prompt(file: Path | None) -> str | None:
    return file.read_text(encoding="utf-8") if file else None
