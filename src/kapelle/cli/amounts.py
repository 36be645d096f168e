"""Tokens, turns and money for people; what nobody knows is never shown as nothing."""

from typing import Any

from kapelle.domain.text import counted

_LEAST_USD = 0.0001


def dollars(amount: float) -> str:
    """An amount such as $1.2345, with a mark where it is too small for that."""
    return f"${amount:,.4f}" if amount == 0 or amount >= _LEAST_USD else f"< ${_LEAST_USD}"


def limit(amount: float) -> str:
    """An amount as somebody chose it, such as $5 or $0.25."""
    return f"${amount:,.2f}" if amount >= 1 and amount % 1 else f"${amount:,g}"


def cost(known: float | None, unknown: int) -> str:
    """What some attempts cost, of which the prices of some may be unknown."""
    if known is None:
        return "unknown"
    if not unknown:
        return dollars(known)
    return f"≥ {dollars(known)} ({counted(unknown, 'attempt')} unknown)"


def usage_line(usage: dict[str, Any]) -> str:
    """What one attempt used, on one line."""
    cached = f" ({usage['cached_tokens']:,} cached)" if usage["cached_tokens"] else ""
    facts = [f"{usage['input_tokens']:,} tokens in{cached}, {usage['output_tokens']:,} out"]
    if usage["turns"]:
        facts.append(counted(usage["turns"], "turn"))
    price = usage["cost_usd"]
    facts.append("cost unknown" if price is None else dollars(price))
    return ", ".join(facts)
