"""Folds the lines of an output into a Summary, in bounded memory; prices what was used."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from kapelle.agents.base import AgentAdapter, Summary
from kapelle.agents.events import AgentEvent
from kapelle.domain.task import Usage
from kapelle.settings.models import Price

_LONGEST_RESULT = 100_000
_LONGEST_MESSAGE = 10_000
_TAIL = 10_000
_LONGEST_NAME = 200
# A sum is no larger, so that the database can add up those of millions of attempts.
_LARGEST_SUM = 10**12
_ANSWERS = {"text": True, "tool_call": False, "tool_result": False}
_FIELDS: dict[str, type[int] | type[float]] = {
    "input_tokens": int,
    "output_tokens": int,
    "cached_tokens": int,
    "turns": int,
    "cost_usd": float,
}
# A snapshot's date (-20250929, -2025-09-29, @20250929), or a mark such as [1m].
_SUFFIX = re.compile(r"(?:-20\d{2}-?[01]\d-?[0-3]\d|@[\w.-]+|\[\w+\])$")


def summarise(agent: AgentAdapter, lines: Iterable[str]) -> Summary:
    """What an agent's whole output said; the last word counts."""
    fold = OutputFold()
    for line in lines:
        for event in agent.parse(line):
            fold.add(event)
    return fold.summary()


def completed_by(output: Summary, side: Summary) -> Summary:
    """What an output says, and where it is silent what the agent's side log does."""
    usage = output.usage
    of_session = output.of_session
    if usage is None:
        usage = side.usage
        of_session = side.of_session
    elif usage.turns == 0 and side.usage is not None:
        usage = usage.model_copy(update={"turns": side.usage.turns})
    return replace(
        output,
        usage=usage,
        of_session=of_session,
        model=output.model or side.model,
        session_id=output.session_id or side.session_id,
    )


def price_of(model: str, overrides: Mapping[str, Price]) -> Price | None:
    """The price of exactly this model, whichever way it is spelled; never that of another."""
    names = list(_names(model))
    tables = (overrides, built_in())
    return next((table[name] for table in tables for name in names if name in table), None)


def cost_usd(usage: Usage, price: Price) -> float:
    """What a usage comes to; its cached tokens are among its input tokens."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    if price.cached is None:
        per_cached = price.input
    else:
        per_cached = price.cached
    dollars = (usage.input_tokens - cached) * price.input + cached * per_cached
    return (dollars + usage.output_tokens * price.output) / 1e6


class OutputFold:
    """Takes an output event by event; summary() is what it comes to at any moment."""

    def __init__(self) -> None:
        self._summary = Summary()
        self.last_text = ""  # what was said last, its pieces together
        self._in_pieces = False
        self._is_taken_back = False
        self._is_answered = False
        self._tail: str | None = None
        self.count = UsageCounter()

    def add(self, event: AgentEvent) -> None:
        # An error takes back the result before it, unless the agent goes on.
        is_last = event.kind not in {"error", "text", "result"} and self._is_taken_back
        late = event.kind == "error" and self._summary.result is not None
        self._is_taken_back = is_last or late
        self._is_answered = _ANSWERS.get(event.kind, self._is_answered)
        match event.kind:
            case "text":
                self._add_text(event.text, event.data.get("delta") is True)
            case "stderr":
                self._add_tail(event.text)
            case "usage":
                self.count.add(event.data)
            case "session":
                self._set(session_id=event.text[:_LONGEST_MESSAGE] or self.session_id)
            case "model":
                self._set(model=event.text[:_LONGEST_NAME] or self._summary.model)
            case "result":
                # An agent may only say that it is done: its answer is its last text.
                result = event.text[:_LONGEST_RESULT] or self.last_text
                is_error = event.data.get("is_error") is True
                self._set(result=result, is_error=is_error, question=None)
            case "error":
                text = event.text[:_LONGEST_MESSAGE]
                name = event.name[:_LONGEST_NAME]
                self._set(error=AgentEvent("error", text, name, event.data))
            case "question":
                self._set(question=event.text[:_LONGEST_MESSAGE], result=None, is_error=False)
            case "tool_call" | "tool_result" | "plan" | "notice":
                self._in_pieces = False

    def _set(self, **fields: Any) -> None:
        self._summary = replace(self._summary, **fields)

    def _add_text(self, text: str, is_piece: bool) -> None:
        """Take a text, or one more piece of the last one."""
        goes_on = is_piece and self._in_pieces
        if goes_on:
            whole = self.last_text + text
        else:
            whole = text
        self.last_text = whole[:_LONGEST_RESULT] or self.last_text
        self._add_tail(text, goes_on)
        self._in_pieces = is_piece

    def _add_tail(self, text: str, goes_on: bool = False) -> None:
        if goes_on or self._tail is None:
            newline = ""
        else:
            newline = "\n"
        self._tail = f"{self._tail or ''}{newline}{text[-_TAIL:]}"[-_TAIL:]

    @property
    def session_id(self) -> str | None:
        return self._summary.session_id

    def summary(self) -> Summary:
        return replace(
            self._summary,
            is_error=self._summary.is_error or self._is_taken_back,
            answered=self._is_answered,
            usage=self.count.usage(),
            of_session=self.count.of_session,
            tail=self._tail or "",
        )


class UsageCounter:
    """Adds up usage events."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._last_id: object = None
        self.of_session: frozenset[str] = frozenset()

    def add(self, data: Mapping[str, Any]) -> None:
        numbers = {key: _number(data.get(key), kind) for key, kind in _FIELDS.items()}
        given = {key: number for key, number in numbers.items() if number is not None}
        if data.get("total") is True:
            self._settle()
            self._take_total(given, data.get("at_least") is True)
            of_session = data.get("of_session")
            if isinstance(of_session, list):
                self.of_session |= frozenset(of_session) & frozenset(given)
            return
        is_repeated = data.get("id") is not None and data.get("id") == self._last_id
        if not is_repeated:
            self._settle()
        elif data.get("at_least") is True:
            given = {key: max(number, self._last.get(key, 0)) for key, number in given.items()}
            given = {**self._last, **given}
        self._last, self._last_id = given, data.get("id")

    def _settle(self) -> None:
        """Add the last event for certain: nothing with its id comes any more."""
        self._sums = self._total()
        self._last = {}
        self._last_id = None

    def _take_total(self, total: Mapping[str, Any], at_least: bool) -> None:
        for key, number in total.items():
            if at_least:
                number = max(number, self._sums.get(key, 0))
            self._sums[key] = min(number, _LARGEST_SUM)

    def _total(self) -> dict[str, Any]:
        sums = dict(self._sums)
        for key, number in self._last.items():
            sums[key] = min(sums.get(key, 0) + number, _LARGEST_SUM)
        return sums

    def usage(self) -> Usage | None:
        sums = self._total()
        return Usage(**sums) if sums else None


def _number(value: object, kind: type[int] | type[float]) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53:
        return kind(value)
    return None


@cache
def built_in() -> Mapping[str, Price]:
    text = files("kapelle.agents").joinpath("prices.toml").read_text(encoding="utf-8")
    return {name: Price(**price) for name, price in tomllib.loads(text)["models"].items()}


def _names(model: str) -> Iterator[str]:
    """Its name, then without the provider before it, then without the date or marks after it."""
    bare = ""
    shorter = model.rpartition("/")[2]
    yield model
    while shorter and shorter != bare:
        yield shorter
        bare = shorter
        shorter = _SUFFIX.sub("", shorter)
