"""`kapelle agents check`."""

import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from kapelle.agents.program import remark
from kapelle.cli.agent_words import advice, login_words, set_here_only
from kapelle.cli.options import Json
from kapelle.cli.outcome import WORK_FAILED
from kapelle.cli.output import document, say
from kapelle.cli.style import paint
from kapelle.cli.text import one_line
from kapelle.cli.times import short
from kapelle.cli.values import not_empty
from kapelle.client.http import Connection as Client

# A version takes up to 20 s and a call up to 120 s, and then the daemon tidies up.
TIMEOUT_S = 200.0


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Agents; without one, all installed.", show_default=False
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Also make one real call, which costs a little.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find out whether agents can be used.

    Exits with 1 when one that was named cannot.
    """
    from kapelle.cli.spec_options import absolute_directory

    client, directory = Client(), absolute_directory(None)
    named = [not_empty(name, "The name of an agent").strip() for name in names or []]
    found = []
    for name in dict.fromkeys(named) or _installed(client, directory):
        path = f"/agents/{quote(name, safe='')}/check"
        body = {"live": live, "directory": directory}
        found.append(client.post(path, body, timeout=TIMEOUT_S))
        if not as_json:
            _tell(found[-1])
    if as_json:
        document(found)
    elif not found:
        say("No coding agent is installed; `kapelle agents` lists those that are known.")
    if named and not all(result["usable"] for result in found):
        raise typer.Exit(WORK_FAILED)


def _installed(client: Client, directory: str) -> list[str]:
    known = client.get("/agents", {"directory": directory})
    # The rehearsal is always there, and no news unless it is what tasks get.
    real = [agent for agent in known if agent["default"] or agent["type"] != "rehearsal"]
    return [agent["name"] for agent in real if agent["installed"]]


def _tell(result: dict[str, Any]) -> None:
    mark, style = ("✓", "green") if result["usable"] else ("✗", "red")
    if result["usable"] and "no login found" in result["agent"]["status"]:
        mark, style = "!", "yellow"
    name = one_line(result["agent"]["name"])
    sys.stdout.write(f"{paint(mark, style)} {name}: {one_line('; '.join(_parts(result)))}\n")
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
