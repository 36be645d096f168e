"""`kapelle agents` and `kapelle agents check`."""

import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from kapelle.agents.base import remark
from kapelle.cli.agent_config import config, login_words
from kapelle.cli.command import LISTS, Json, LightCommand, argument, command_group, flag
from kapelle.cli.format import mark, moment, now, one_line, paint, short, table
from kapelle.cli.outcome import WORK_FAILED
from kapelle.cli.output import document, say
from kapelle.cli.values import not_empty
from kapelle.client.http import Connection

Agent = dict[str, Any]
# A version takes up to 20 s and a call up to 120 s, and then the daemon tidies up.
TIMEOUT_S = 200.0


def list_agents(as_json: Json = False) -> None:
    """List the agents that are known, and whether they can be used."""
    from kapelle.cli.spec_options import absolute_directory

    known = Connection().get("/agents", {"directory": absolute_directory(None)})
    if as_json:
        document(known)
        return
    header = ["NAME", "STATUS", "LOGIN", "MODEL", ""]
    lines = table(header, [*map(_row, known)], [*map(_style, known)])
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    for agent in known:
        for text in remarks(agent):
            say(text)
    if not any(agent["default"] for agent in known):
        say("No default agent is set; `kapelle init` chooses one.")


def _row(agent: dict[str, Any]) -> list[str]:
    return [
        one_line(agent["name"]),
        "paused" if agent["paused_until"] else one_line(agent["status"]),
        one_line(login_words(agent["login"])) if agent["installed"] else "",
        one_line(agent["model"] or ""),
        "default" if agent["default"] else "",
    ]


def _style(agent: dict[str, Any]) -> str:
    if agent["paused_until"]:
        return "yellow"
    if agent["status"] == "not installed":
        return "dim"
    return "red" if agent["problem"] else "green"


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


def check(
    names: Annotated[
        list[str] | None, argument("[NAME]...", "Agents; without one, all installed.")
    ] = None,
    live: Annotated[bool, flag("Also make one real call, which costs a little.", "--live")] = False,
    as_json: Json = False,
) -> None:
    """Find out whether agents can be used.

    Exits with 1 when one that was named cannot.
    """
    from kapelle.cli.spec_options import absolute_directory

    client, directory = Connection(), absolute_directory(None)
    named = [not_empty(name, "The name of an agent").strip() for name in names or []]
    found = []
    for name in dict.fromkeys(named) or _installed(client, directory):
        path = f"/agents/{quote(name, safe='')}/check"
        body = {"live": live, "directory": directory}
        found.append(client.post(path, body, timeout=TIMEOUT_S))
        if not as_json:
            _print(found[-1])
    if as_json:
        document(found)
    elif not found:
        say("No coding agent is installed; `kapelle agents` lists those that are known.")
    if named and not all(result["usable"] for result in found):
        raise typer.Exit(WORK_FAILED)


def _installed(client: Connection, directory: str) -> list[str]:
    known = client.get("/agents", {"directory": directory})
    # The rehearsal is always there, and no news unless it is what tasks get.
    real = [agent for agent in known if agent["default"] or agent["type"] != "rehearsal"]
    return [agent["name"] for agent in real if agent["installed"]]


def _print(result: dict[str, Any]) -> None:
    login = result["agent"]["login"]
    found = login["source"] != "none" or login["verified_at"]
    doubtful = result["usable"] and login["needed"] and not found
    sign = paint("!", "yellow") if doubtful else mark(result["usable"])
    name = one_line(result["agent"]["name"])
    sys.stdout.write(f"{sign} {name}: {one_line('; '.join(_parts(result)))}\n")
    sys.stdout.flush()


def _parts(result: dict[str, Any]) -> list[str]:
    agent, live = result["agent"], result["live"]
    if not agent["installed"] or (not result["usable"] and live is None):
        return [advice(result["problem"] or agent["status"], result["hint"])]
    parts = [remark(result["version"], agent["tested"])] if agent["tested"] else []
    login = login_words(agent["login"])
    parts += [f"login: {login}"] if login else []
    if live is None:
        return [*parts, *_unverified(agent)]
    if live["ok"]:
        return [*parts, f"it answered in {short(live['duration_s'])}"]
    return [*parts, f"{live['failure']}: {advice(live['reason'], result['hint'])}"]


def _unverified(agent: dict[str, Any]) -> list[str]:
    name = agent["name"]
    if agent["login"]["verified_at"] or agent["status"] == "installed":
        return [agent["status"]]
    if variable := set_here_only(agent["login"]):
        return [f"{variable} is set here, but the daemon was started without it: kapelle stop"]
    if agent["login"]["source"] == "none":
        key = f"kapelle agents config set {name} api_key"
        return [f"log in with its own program, or: {key}; --live tries it"]
    return [f"{agent['status']}: --live tries it"]


def advice(problem: str, hint: str | None) -> str:
    """A problem and what to type next."""
    return f"{problem.rstrip('.')}. {hint}" if hint else problem


def set_here_only(login: dict[str, Any]) -> str | None:
    """A variable that would be the login, if the daemon had it too."""
    if login["source"] != "none" or os.environ.get("KAPELLE_URL"):
        return None
    return next((name for name in login["variables"] if os.environ.get(name)), None)


agents = command_group("List agents, try them out and set them up." + LISTS)
agents.command("list", cls=LightCommand)(list_agents)
agents.command("check", cls=LightCommand)(check)
agents.add_typer(config, name="config")
