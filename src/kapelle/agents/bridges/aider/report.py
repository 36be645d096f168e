"""Reads what aider prints and logs, and tells it as events.

Its answers and its usage come from its logs, where they are whole and exact. What goes wrong is
only in its output: there it speaks itself after the last "Tokens:" line, and the model before it.
"""

import re
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kapelle.agents.bridges.aider.errors import ERROR, described
from kapelle.agents.bridges.aider.logs import Answers, Events

_MODEL = re.compile(r"(?:Main model|Model): (\S+) with .+ edit format")
_TOKENS = re.compile(
    r"Tokens: \S+ sent(?:, \S+ cache write)?(?:, (\S+) cache hit)?, \S+ received\."
)
_RETRY = re.compile(r"Retrying in [\d.]+ seconds\.\.\.")
_EDITED = re.compile(r"Applied edit to (.+)")
_GAVE_UP = re.compile(r"Only \d+ reflections allowed, stopping\.")
_TOO_LONG = re.compile(r"Model \S+ has hit a token limit!")
_MALFORMED = "The LLM did not conform to the edit format."
_LOGIN = "OpenRouter provides free and paid access to many LLMs."
_PRICE_TABLE = "model_prices_and_context_window.json"
_UNITS = {"k": 1000, "M": 1_000_000}
_LONGEST = 4000

Emit = Callable[..., None]


class Report:
    """Hears aider line by line, and judges it at its end."""

    def __init__(self, emit: Emit, events: Path, answers: Path) -> None:
        self._emit = emit
        self._events, self._answers = Events(events), Answers(answers)
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._cached: deque[int] = deque()
        self._words: deque[str] = deque(maxlen=500)
        self._answer = ""
        self._told = self._sent = 0
        self._is_answered = self._is_complete = False
        self.banner_is_over = self.wants_login = False

    def hear(self, line: str) -> None:
        """One line of its output; what was logged before it is told before it."""
        self._read_events()
        if found := _TOKENS.match(line):
            self._words.clear()
            self._cached.append(_count(found[1]))
        elif _RETRY.match(line):
            self._tell("notice", self._said())
            self._words.clear()
        elif line == _MALFORMED:
            self._emit("notice", line)
            self._words.append(line)
        elif not self.banner_is_over:
            self._hear_banner(line)
        elif _PRICE_TABLE not in line:
            self._words.append(line)
            if found := _EDITED.match(line):
                self._emit("tool_call", name="edit", data={"path": found[1]})

    def _hear_banner(self, line: str) -> None:
        if found := _MODEL.match(line):
            self._emit("model", found[1])
        self.wants_login = self.wants_login or line == _LOGIN
        self.banner_is_over = line.startswith("Repo-map: ")
        if self.banner_is_over:
            self._words.clear()
        elif _PRICE_TABLE not in line:
            self._words.append(line)

    def end(self, code: int) -> None:
        """Tell how it ended; success is a last message that was answered and acted upon."""
        self._read_events(is_over=True)
        self._tell_answers(is_over=True)
        said = self._said()
        if self.wants_login:
            self._emit("error", "No model is set and there is no API key.", "authentication")
        elif code < 0:
            return
        elif code > 0 or not self._is_complete:
            # If it said nothing here, its error output tells more than we could.
            if said:
                self._tell("error", said)
        elif any(map(_TOO_LONG.match, self._words)):
            self._emit("error", "\n".join(said.split("\n\n")[:2]), "context_overflow")
        elif any(map(_GAVE_UP.match, self._words)):
            self._emit("error", f"aider gave up after its corrections: {said}", "task")
        elif not self._is_answered or not self._answer.strip():
            self._tell("error", said or "The model gave no answer.")
        else:
            self._emit("result", self._answer)

    def _said(self) -> str:
        """Its own last words, from the provider's error on if there is one."""
        words = list(self._words)
        errors = [number for number, line in enumerate(words) if ERROR.match(line)]
        if errors:
            return "\n".join(words[errors[-1] :]).split("\n\n")[0].strip()[:_LONGEST]
        return "\n".join(words).strip()[-_LONGEST:]

    def _tell(self, kind: str, text: str) -> None:
        self._emit(kind, text, *described(text))

    def _read_events(self, is_over: bool = False) -> None:
        self._waiting.extend(self._events.new())
        while self._waiting:
            # It logs this after the line that tells of cached tokens.
            if self._waiting[0][0] == "message_send" and not (is_over or self._cached):
                return
            self._learn(*self._waiting.popleft())

    def _learn(self, event: str, properties: dict[str, Any]) -> None:
        match event:
            case "message_send_starting":
                self._is_answered = False
            case "message_send":
                self._is_answered = True
                self._sent += 1
                self._tell_answers()
                self._tell_usage(properties)
            case "exit":
                self._is_complete = properties.get("reason") == "Completed --message-file"

    def _tell_answers(self, is_over: bool = False) -> None:
        """All that are whole: the newest too, unless its message is yet to be learned of."""
        answers = self._answers.new()
        if is_over or self._told + len(answers) < self._sent:
            newest = self._answers.last()
            answers += [newest] if newest or not is_over else []
        for self._answer in answers:
            self._told += 1
            if self._answer.strip():
                self._emit("text", self._answer)

    def _tell_usage(self, properties: dict[str, Any]) -> None:
        cached = self._cached.popleft() if self._cached else 0
        # It also counts, by its own estimate, what the provider refused to read.
        if not properties.get("completion_tokens"):
            return
        used = {
            "input_tokens": properties.get("prompt_tokens", 0),
            "output_tokens": properties["completion_tokens"],
            "cached_tokens": cached,
            "turns": 1,
        }
        # Where it knows no price it says 0.
        if properties.get("cost"):
            used["cost_usd"] = properties["cost"]
        self._emit("usage", data=used)


def _count(figure: str | None) -> int:
    """The number behind 850, 1.2k or 3M."""
    if not figure:
        return 0
    unit = _UNITS.get(figure[-1], 1)
    return round(float(figure.rstrip("kM")) * unit)
