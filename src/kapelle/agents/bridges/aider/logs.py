"""What aider logs: every answer whole, and its own events with exact counts."""

import json
import re
from pathlib import Path
from typing import Any

_HEADING = re.compile(r"(TO LLM|LLM RESPONSE) \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


class Log:
    """A file that grows: the lines that came since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = path.stat().st_size if path.exists() else 0

    def lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._read_to += len(whole)
        return whole.decode("utf-8", "replace").split("\n")[:-1]


class Events:
    """Its analytics, which it sends to nobody and writes to this file."""

    def __init__(self, path: Path) -> None:
        self._log = Log(path)

    def new(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for line in self._log.lines():
            try:
                entry = json.loads(line)
                found.append((entry["event"], dict(entry["properties"])))
            except (ValueError, KeyError, TypeError):
                continue
        return found


class Answers:
    """Its conversation with the model, of which only the model's part is read."""

    def __init__(self, path: Path) -> None:
        self._log = Log(path)
        self._lines: list[str] | None = None

    def new(self) -> list[str]:
        """Answers that something follows, so that they are whole."""
        found = []
        for line in self._log.lines():
            if heading := _HEADING.fullmatch(line):
                found.append(self.last())
                self._lines = [] if heading[1] == "LLM RESPONSE" else None
            elif self._lines is not None and line.startswith("ASSISTANT "):
                self._lines.append(line.removeprefix("ASSISTANT "))
        return [answer for answer in found if answer.strip()]

    def last(self) -> str:
        """What there is of the newest answer, which new has not told yet; then it is told."""
        answer = "\n".join(self._lines or ())
        self._lines = None
        return answer
