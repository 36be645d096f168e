"""What a waiting task waits for and until when, in a sentence."""

from kapelle.cli.outcome import Task
from kapelle.cli.times import moment, now, short

_WAITS = {"input": "waiting for your answer", "rate_limit": "waiting for a rate limit to pass"}


def what_it_waits_for(task: Task) -> str:
    """The reason of a waiting task, with the time at which it goes on by itself."""
    reason = task["reason"] or _WAITS.get(task["waiting_for"] or "", "waiting")
    until = moment(task.get("not_before"))
    if until is None:
        return str(reason)
    left = (until - now()).total_seconds()
    soon = f"in {short(left)}" if left > 0 else "now"
    return f"{reason}; goes on {soon}, at {until.astimezone():%Y-%m-%d %H:%M:%S}"
