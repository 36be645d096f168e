"""Fold the events of an output into a Summary, in bounded memory, and compute its cost."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from kapelle.agents.base import AgentAdapter
from kapelle.agents.events import AgentEvent
from kapelle.agents.verdict import Summary
from kapelle.domain.task import Usage
from kapelle.settings.models import Price

_LONGEST_RESULT = 100_000
_LONGEST_MESSAGE = 10_000
_TAIL = 10_000
_LONGEST_NAME = 200
# The largest sum of one attempt, so that the database can add up those of millions of attempts.
_LARGEST_SUM = 10**12
# Whether the agent has answered after an event of this kind; other kinds change nothing.
_ANSWERS = {"text": True, "tool_call": False, "tool_result": False}
_FIELDS: dict[str, type[int] | type[float]] = {
    "input_tokens": int,
    "output_tokens": int,
    "cached_tokens": int,
    "turns": int,
    "cost_usd": float,
}
# The end of a model's name that its price does not depend on: the date of a snapshot (-20250929,
# -2025-09-29, @20250929), or a mark such as [1m].
_SUFFIX = re.compile(r"(?:-20\d{2}-?[01]\d-?[0-3]\d|@[\w.-]+|\[\w+\])$")


def summarise(agent: AgentAdapter, lines: Iterable[str]) -> Summary:
    """Return the summary of an agent's whole output; a later event overrides an earlier one."""
    fold = OutputFold()
    for line in lines:
        for event in agent.parse(line):
            fold.add(event)
    return fold.summary()


def complete_summary(output: Summary, side: Summary) -> Summary:
    """Return the summary of an output, with the side log's values for those that it lacks."""
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


def find_price(model: str, overrides: Mapping[str, Price]) -> Price | None:
    """Return the price of this very model, in any of its spellings; None if it is unknown."""
    for table in (overrides, built_in_prices()):
        for name in _spellings(model):
            if name in table:
                return table[name]
    return None


def compute_cost(usage: Usage, price: Price) -> float:
    """Return the cost of a usage in USD; its cached tokens are part of its input tokens."""
    cached_tokens = min(usage.cached_tokens, usage.input_tokens)
    cached_price = price.input if price.cached is None else price.cached
    micro_usd = (usage.input_tokens - cached_tokens) * price.input
    micro_usd += cached_tokens * cached_price
    micro_usd += usage.output_tokens * price.output
    return micro_usd / 1e6


class OutputFold:
    """Takes an output event by event; summary() may be called at any time."""

    def __init__(self) -> None:
        self._summary = Summary()
        self.last_text = ""  # the last text, with all its pieces
        self._in_pieces = False
        self._is_taken_back = False
        self._is_answered = False
        self._tail: str | None = None
        self.count = UsageCounter()

    def add(self, event: AgentEvent) -> None:
        # An error after a result takes the result back, until the agent continues.
        if event.kind == "error":
            self._is_taken_back = self._summary.result is not None
        elif event.kind in {"text", "result"}:
            self._is_taken_back = False
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
                # Some agents report only that they are done: the answer is the last text then.
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
        """Add a text, or the next piece of the last text."""
        continues = is_piece and self._in_pieces
        whole = self.last_text + text if continues else text
        self.last_text = whole[:_LONGEST_RESULT] or self.last_text
        self._add_tail(text, continues)
        self._in_pieces = is_piece

    def _add_tail(self, text: str, continues: bool = False) -> None:
        tail = text[-_TAIL:]
        if self._tail is not None:
            separator = "" if continues else "\n"
            tail = f"{self._tail}{separator}{tail}"
        self._tail = tail[-_TAIL:]

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
        counts = _counts(data)
        if data.get("total") is True:
            self._settle()
            self._take_total(counts, data.get("at_least") is True)
            of_session = data.get("of_session")
            if isinstance(of_session, list):
                self.of_session |= frozenset(of_session) & frozenset(counts)
            return
        is_repeated = data.get("id") is not None and data.get("id") == self._last_id
        if not is_repeated:
            self._settle()
        elif data.get("at_least") is True:
            counts = {key: max(number, self._last.get(key, 0)) for key, number in counts.items()}
            counts = {**self._last, **counts}
        self._last = counts
        self._last_id = data.get("id")

    def _settle(self) -> None:
        """Add the last event to the sums, because no later event replaces it."""
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


def _counts(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a usage event that hold a valid number."""
    counts = {}
    for key, kind in _FIELDS.items():
        number = _number(data.get(key), kind)
        if number is not None:
            counts[key] = number
    return counts


def _number(value: object, kind: type[int] | type[float]) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53:
        return kind(value)
    return None


@cache
def built_in_prices() -> Mapping[str, Price]:
    """Return the prices of prices.toml by model."""
    text = files("kapelle.agents").joinpath("prices.toml").read_text(encoding="utf-8")
    return {name: Price(**price) for name, price in tomllib.loads(text)["models"].items()}


def _spellings(model: str) -> Iterator[str]:
    """Yield a model's name, then without its provider, then also without its date and marks."""
    yield model
    name = model.rpartition("/")[2]
    previous = ""
    while name and name != previous:
        yield name
        previous = name
        name = _SUFFIX.sub("", name)
