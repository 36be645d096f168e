"""What an attempt used and what that costs."""

from collections.abc import Iterable, Mapping

from kapelle.agents.base import Summary
from kapelle.agents.summary import cost_usd, price_of
from kapelle.domain.task import Usage
from kapelle.settings import Settings


def of_attempt(
    summary: Summary, before: Mapping[str, float], model: str | None, settings: Settings
) -> Usage | None:
    """The usage of one attempt alone, with its price; before is what its session had counted."""
    if summary.usage is None:
        return None
    told = summary.usage.model_dump()
    for name in summary.of_session:
        if told[name] is not None:
            told[name] = max(0, told[name] - before.get(name, 0))
    usage = Usage.model_validate(told)
    if usage.cost_usd is not None:
        return usage
    price = price_of(summary.model or model or "", settings.prices)
    return usage.model_copy(update={"cost_usd": cost_usd(usage, price)}) if price else usage


def of_session(summary: Summary) -> dict[str, float]:
    """The session's counters as they stand, for the attempt that goes on with it."""
    if summary.usage is None:
        return {}
    told = summary.usage.model_dump()
    return {name: told[name] for name in summary.of_session if told[name] is not None}


def added(parts: Iterable[Usage | None]) -> Usage | None:
    """The sum of what is known; its cost is unknown where that of any part is."""
    known = [part for part in parts if part is not None]
    if len(known) < 2:
        return known[0] if known else None
    costs = [part.cost_usd for part in known]
    return Usage(
        input_tokens=sum(part.input_tokens for part in known),
        output_tokens=sum(part.output_tokens for part in known),
        cached_tokens=sum(part.cached_tokens for part in known),
        turns=sum(part.turns for part in known),
        cost_usd=None if None in costs else sum(cost or 0 for cost in costs),
    )
