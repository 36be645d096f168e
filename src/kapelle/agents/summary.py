"""Folds the lines of an output into a Summary, in bounded memory."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from kapelle.agents.base import Agent, AgentEvent, Summary
from kapelle.domain.task import Usage

_LONGEST_RESULT = 100_000
_LONGEST_MESSAGE = 10_000
_TAIL = 10_000
_TOKENS = ("input_tokens", "output_tokens", "cached_tokens", "turns")


def summarise(agent: Agent, lines: Iterable[str]) -> Summary:
    """What an agent's whole output said; the last word counts."""
    fold = _Fold()
    for line in lines:
        for event in agent.parse(line):
            fold.add(event)
    return fold.summary()


class _Fold:
    def __init__(self) -> None:
        self._result: str | None = None
        self._is_error = False
        self._session_id: str | None = None
        self._usage: Usage | None = None
        self._error: AgentEvent | None = None
        self._question: str | None = None
        self._tail = _Tail()

    def add(self, event: AgentEvent) -> None:
        match event.kind:
            case "text" | "stderr":
                self._tail.add(event.text)
            case "usage":
                self._usage = _counted(self._usage, event.data)
            case "session":
                self._session_id = event.text[:_LONGEST_MESSAGE] or self._session_id
            case "result":
                self._result = event.text[:_LONGEST_RESULT]
                self._is_error = event.data.get("is_error") is True
                self._question = None
            case "error":
                self._error = AgentEvent(
                    "error", event.text[:_LONGEST_MESSAGE], event.name[:200], event.data
                )
            case "question":
                self._question = event.text[:_LONGEST_MESSAGE]
                self._result = None
                self._is_error = False
            case "tool_call" | "tool_result":
                pass

    def summary(self) -> Summary:
        return Summary(
            result=self._result,
            is_error=self._is_error,
            session_id=self._session_id,
            usage=self._usage,
            error=self._error,
            question=self._question,
            tail=self._tail.text(),
        )


class _Tail:
    """The last texts of an output, joined by newlines."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._size = 0

    def add(self, text: str) -> None:
        kept = text[-_TAIL:]
        self._texts.append(kept)
        self._size += len(kept) + 1
        while self._size - len(self._texts[0]) - 1 >= _TAIL:
            self._size -= len(self._texts.popleft()) + 1

    def text(self) -> str:
        return "\n".join(self._texts)[-_TAIL:]


def _counted(before: Usage | None, data: Mapping[str, Any]) -> Usage:
    tokens = {key: _number(data.get(key), int) for key in _TOKENS}
    cost = _number(data.get("cost_usd"), float) if "cost_usd" in data else None
    if before and data.get("total") is not True:
        tokens = {key: count + getattr(before, key) for key, count in tokens.items()}
        if before.cost_usd is not None:
            cost = before.cost_usd + (cost or 0.0)
    return Usage(**tokens, cost_usd=cost)


def _number(value: object, kind: type[int] | type[float]) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53:
        return kind(value)
    return kind(0)
