"""Counts what an ACP agent uses: estimates while it works, its own totals at the end."""

from collections import Counter
from typing import Any

from kapelle.agents.bridges.acp.events import emit
from kapelle.agents.reading import list_of, mapping_of, text_of


class Meter:
    """Watches one prompt; every event it prints holds the sums so far.

    ACP tells only how full the context is, after each answer or at its start and end. From that an
    answer's tokens are estimated, so that limits can be watched; the final totals replace them.
    """

    def __init__(self, agent: str) -> None:
        self._last_answer_only = agent == "OpenCode"  # what its final totals are of
        self._of_session = [] if "claude" in agent else ["cost_usd"]
        self.turns = 0
        self._fresh = True  # whether what the agent says next is a new answer of the model
        self._earlier: Counter[str] = Counter()  # tokens of the answers before this one
        self._now: Counter[str] = Counter()
        self._context = 0  # by the last word about it

    def speaks(self) -> bool:
        """The model said something or called a tool; whether that begins a new answer."""
        if not self._fresh:
            return False
        self._begin()
        self._tell({})
        return True

    def works(self) -> None:
        """A tool gave its result: what comes next is a new answer."""
        self._fresh = True

    def update(self, update: dict[str, Any]) -> None:
        """A usage_update: the context's size, and perhaps the session's cost so far."""
        used, cost = update.get("used"), mapping_of(update.get("cost"))
        if isinstance(used, int) and used > 0:
            # Some agents tell at an answer's start, some only after its tools have run.
            if self.turns == 0 or (self._fresh and self._now):
                self._begin()
            self._estimate(used)
        amount = cost.get("amount")
        if isinstance(amount, int | float) and cost.get("currency", "USD") == "USD":
            self._tell({"cost_usd": amount, "of_session": self._of_session})
        else:
            self._tell({})

    def finish(self, response: dict[str, Any]) -> None:
        """Report what the answer to session/prompt says was used."""
        usage = mapping_of(response.get("usage"))
        quota = mapping_of(mapping_of(response.get("_meta")).get("quota"))
        for entry in list_of(quota.get("model_usage")):
            if model := text_of(mapping_of(entry).get("model")):
                emit("model", model)
        tokens = _tokens(usage) if usage else _quota(mapping_of(quota.get("token_count")))
        if not tokens:
            return
        self._now = Counter(tokens)
        if not self._last_answer_only:
            self._earlier.clear()
        self._tell({})

    def _begin(self) -> None:
        self.turns += 1
        self._fresh = False
        self._earlier.update(self._now)
        self._now = Counter()

    def _estimate(self, used: int) -> None:
        if not self._now:
            # What an earlier answer has seen comes from the provider's cache, as a rule.
            self._now["input_tokens"] = used
            self._now["cached_tokens"] = min(self._context, used)
        self._now["output_tokens"] = max(0, used - self._now["input_tokens"])
        self._context = used

    def _tell(self, more: dict[str, Any]) -> None:
        tokens = {key: self._earlier[key] + self._now[key] for key in {*self._earlier, *self._now}}
        emit("usage", data={**tokens, "turns": self.turns, **more, "total": True})


def _tokens(usage: dict[str, Any]) -> dict[str, int]:
    """Totals in our counting; whether cached and thought tokens are extra tells the sum."""
    given = {key: value for key, value in usage.items() if isinstance(value, int)}
    sent, said = given.get("inputTokens", 0), given.get("outputTokens", 0)
    cached, stored = given.get("cachedReadTokens", 0), given.get("cachedWriteTokens", 0)
    thought, total = given.get("thoughtTokens", 0), given.get("totalTokens", 0)
    if total >= sent + said + cached + stored:
        sent += cached + stored
    if total >= sent + said + thought:
        said += thought
    return {"input_tokens": sent, "output_tokens": said, "cached_tokens": cached}


def _quota(count: dict[str, Any]) -> dict[str, int]:
    given = {key: value for key, value in count.items() if isinstance(value, int)}
    if "input_tokens" not in given:
        return {}
    return {
        "input_tokens": given["input_tokens"],
        "output_tokens": given.get("output_tokens", 0),
        "cached_tokens": given.get("cached_tokens", 0),
    }
