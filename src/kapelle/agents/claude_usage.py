"""What Claude Code says that it used, as what one run did."""

from typing import Any

from kapelle.agents.base import AgentEvent
from kapelle.agents.claude_stream import whole
from kapelle.agents.reading import mapping_of, text_of

_Json = dict[str, Any]


def answer_usage(event: _Json) -> list[AgentEvent]:
    """What one answer used as far as it is known: its output is counted only at the end.

    An answer comes in several messages of one id. Turns are those that Claude itself limits, so
    answers to subagents are none.
    """
    message = mapping_of(event.get("message"))
    usage = mapping_of(message.get("usage"))
    if not usage or message.get("model") == "<synthetic>":
        return []
    turns = 0 if event.get("parent_tool_use_id") else 1
    data = {**_tokens(usage), "turns": turns, "id": text_of(message.get("id")) or None}
    return [AgentEvent("usage", data=data)]


class Total:
    """Adds up the results of one run, each of which tells what was used since the one before.

    There are several when work in the background ends after the first answer. Where one of them is
    missing, or the version does not tell that much, there is only the sum over the session.
    """

    def __init__(self) -> None:
        self._session = ""
        self._told: dict[int, _Json] = {}

    def usage(self, event: _Json) -> _Json:
        since, index = event.get("model_usage_since_last_result"), whole(event.get("result_index"))
        if not isinstance(since, dict):
            tokens = _tokens(mapping_of(event.get("usage")))
            cost = _dollars(event.get("total_cost_usd"))
            return {**tokens, "cost_usd": cost, "total": True, "of_session": ["cost_usd"]}
        session = text_of(event.get("session_id"))
        if index == 0 or session != self._session:
            self._session, self._told = session, {}
        self._told[index] = since
        if len(self._told) == index + 1:
            return {**_sums(*self._told.values()), "total": True}
        sums = _sums(mapping_of(event.get("modelUsage")))
        return {**sums, "total": True, "of_session": list(sums)}


def _tokens(usage: _Json) -> _Json:
    cached = whole(usage.get("cache_read_input_tokens"))
    written = whole(usage.get("cache_creation_input_tokens"))
    return {
        "input_tokens": whole(usage.get("input_tokens")) + cached + written,
        "output_tokens": whole(usage.get("output_tokens")),
        "cached_tokens": cached,
    }


def _sums(*results: _Json) -> _Json:
    told = [mapping_of(model) for result in results for model in result.values()]

    def tokens(*names: str) -> int:
        return sum(whole(model.get(name)) for model in told for name in names)

    sums: _Json = {
        "input_tokens": tokens("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens"),
        "output_tokens": tokens("outputTokens"),
        "cached_tokens": tokens("cacheReadInputTokens"),
    }
    # The price of a model that it does not know it guesses.
    if all(model.get("costBasis") != "unknown" for model in told):
        sums["cost_usd"] = sum(_dollars(model.get("costUSD")) for model in told)
    return sums


def _dollars(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    return 0.0
