"""What Claude Code says that it used, as what one run did."""

from typing import Any

from kapelle.agents.adapters.claude_stream import whole
from kapelle.agents.base import AgentEvent
from kapelle.agents.reading import mapping_of, text_of

_Json = dict[str, Any]


class Meter:
    """What one run uses: by its transcript while it works, and by its results for certain.

    The stream itself tells of an answer only that it began.
    """

    def __init__(self) -> None:
        self._asked_at = ""
        self._session = ""
        self._told: dict[int, _Json] = {}

    def noted(self, line: _Json) -> list[AgentEvent]:
        """What a line of the transcript says; an answer comes in several lines of one id.

        A fork's begins with the answers of the session it was taken from, which are older than
        the question. Turns are those that Claude itself limits: subagents have none.
        """
        at = text_of(line.get("timestamp"))
        if line.get("type") == "queue-operation" and line.get("operation") == "enqueue":
            self._asked_at = at
        message = mapping_of(line.get("message"))
        usage = mapping_of(message.get("usage"))
        is_answer = line.get("type") == "assistant" and message.get("model") != "<synthetic>"
        if not usage or not is_answer or at < self._asked_at:
            return []
        turns = 0 if line.get("isSidechain") is True else 1
        data = {**_tokens(usage), "turns": turns, "id": text_of(message.get("id")) or None}
        return [AgentEvent("usage", data=data)]

    def told(self, result: _Json) -> AgentEvent:
        """What a result says of the run, subagents included.

        There are several when work in the background ends after the first answer, and each tells
        what was used since the one before. Where one is missing, or the version does not tell that
        much, there is only the sum over the session.
        """
        return AgentEvent("usage", data={**self._sums(result), "total": True})

    def _sums(self, result: _Json) -> _Json:
        since = result.get("model_usage_since_last_result")
        if not isinstance(since, dict):
            tokens = _tokens(mapping_of(result.get("usage")))
            cost = _dollars(result.get("total_cost_usd"))
            return {**tokens, "cost_usd": cost, "of_session": ["cost_usd"]}
        index, session = whole(result.get("result_index")), text_of(result.get("session_id"))
        if index == 0 or session != self._session:
            self._session, self._told = session, {}
        self._told[index] = since
        if len(self._told) == index + 1:
            return _sums(*self._told.values())
        sums = _sums(mapping_of(result.get("modelUsage")))
        return {**sums, "of_session": list(sums)}


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
