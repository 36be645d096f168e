"""What is said about an agent, in words that promise nothing that was not tried."""

import os
from collections.abc import Iterator
from typing import Any

from kapelle.cli.times import moment, now, short

Agent = dict[str, Any]


def login_words(login: dict[str, Any]) -> str:
    """Where an agent's credential comes from."""
    match login["source"]:
        case "environment":
            return f"{login['variable']} (environment)"
        case "settings":
            return f"{login['variable']} (settings)"
        case "stored":
            return "stored key"
        case "login":
            return "its own login"
    return "none found" if login["needed"] else ""


def remarks(agent: Agent) -> Iterator[str]:
    """What the person should know besides the line in the table."""
    name = agent["name"]
    if agent["paused_until"]:
        until = moment(agent["paused_until"])
        left = short((until - now()).total_seconds()) if until else "a while"
        yield (
            f"{name} is paused for {left}: {agent['paused_reason']}."
            f" `kapelle agents check {name} --live` lifts it if it works again."
        )
    # That one of the programs is not installed is no news, unless it is the one to use.
    if agent["problem"] and (agent["default"] or agent["status"] != "not installed"):
        yield f"{name}: {advice(agent['problem'], agent['hint'])}"
    if stale := set_here_only(agent["login"]):
        yield (
            f"{name}: {stale} is set here, but the daemon was started without it."
            " `kapelle stop`; the next command starts it with what is set then."
        )


def advice(problem: str, hint: str | None) -> str:
    """A problem and what to type next."""
    return f"{problem.rstrip('.')}. {hint}" if hint else problem


def set_here_only(login: dict[str, Any]) -> str | None:
    """A variable that would be the login, if the daemon had it too."""
    if login["source"] != "none" or os.environ.get("KAPELLE_URL"):
        return None
    return next((name for name in login["variables"] if os.environ.get(name)), None)
