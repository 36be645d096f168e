"""Times, durations, sizes and costs, formatted for people."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kapelle.domain.text import format_count

if TYPE_CHECKING:
    from kapelle.client.records import TaskJson, UsageJson

_LEAST_USD = 0.0001


def parse_time(text: str | None) -> datetime | None:
    """Return a time of the API; None if there is none."""
    if text:
        return datetime.fromisoformat(text)
    return None


def now() -> datetime:
    return datetime.now(UTC)


def local_time(text: str | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a time of the API in the local time zone; empty if there is none."""
    at = parse_time(text)
    if at is None:
        return ""
    return at.astimezone().strftime(form)


def format_seconds(seconds: float) -> str:
    """Format a duration, such as 0.4s, 12s, 3m05s, 2h10m or 4d03h."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def elapsed_s(start: str, end: str | None) -> float:
    """Return the seconds between two times of the API; without an end, until now."""
    return ((parse_time(end) or now()) - datetime.fromisoformat(start)).total_seconds()


def format_elapsed(start: str | None, end: str | None) -> str:
    """Format the time since a start, up to an end or now; empty if there is no start."""
    if start:
        return format_seconds(elapsed_s(start, end))
    return ""


def attempts_s(task: "TaskJson") -> float:
    """Return the seconds that a task's attempts took, without the time between them."""
    attempts = task["attempts"]
    return sum(elapsed_s(attempt["started_at"], attempt["ended_at"]) for attempt in attempts)


def format_time_left(text: str | None) -> str:
    """Format how soon a time of the API is, such as "in 3m05s"; empty if there is none."""
    at = parse_time(text)
    if at is None:
        return ""
    seconds = (at - now()).total_seconds()
    if seconds > 0:
        return f"in {format_seconds(seconds)}"
    return "now"


def format_size(count: int) -> str:
    """Format a number of bytes, such as 12 B, 3.4 kB or 120 MB."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 100:
            return f"{amount:.1f} {unit}"
        if amount < 1000:
            return f"{amount:.0f} {unit}"
    return f"{amount / 1000:.1f} TB"


def format_usd(amount: float) -> str:
    """Format an amount of US dollars, such as $1.2345; tiny amounts become "< $0.0001"."""
    if amount == 0 or amount >= _LEAST_USD:
        return f"${amount:,.4f}"
    return f"< ${_LEAST_USD}"


def format_usd_limit(amount: float) -> str:
    """Format an amount that a person chose, such as $5 or $0.25."""
    if amount >= 1 and amount % 1:
        return f"${amount:,.2f}"
    return f"${amount:,g}"


def format_cost(sum_usd: float | None, unknown: int) -> str:
    """Format the cost of several attempts.

    sum_usd is the sum of the costs that are known; unknown counts the attempts without one.
    """
    if sum_usd is None:
        return "unknown"
    if not unknown:
        return format_usd(sum_usd)
    return f"≥ {format_usd(sum_usd)} ({format_count(unknown, 'attempt')} unknown)"


def format_usage(usage: "UsageJson") -> str:
    """Format the tokens, turns and cost of one attempt on one line."""
    parts = []
    if usage["input_tokens"] or usage["output_tokens"] or not usage["turns"]:
        cached = ""
        if usage["cached_tokens"]:
            cached = f" ({usage['cached_tokens']:,} cached)"
        parts.append(f"{usage['input_tokens']:,} tokens in{cached}")
        parts.append(f"{usage['output_tokens']:,} out")
    else:
        # A turn always takes tokens: an agent that reports none does not count them.
        parts.append("tokens unknown")
    if usage["turns"]:
        parts.append(format_count(usage["turns"], "turn"))
    if usage["cost_usd"] is None:
        parts.append("cost unknown")
    else:
        parts.append(format_usd(usage["cost_usd"]))
    return ", ".join(parts)
