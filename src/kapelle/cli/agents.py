"""`kapelle agents`, `kapelle agents check` and `kapelle agents config`."""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from kapelle.agents.versions import describe_version
from kapelle.cli import parser
from kapelle.cli.config import (
    ConfigEntry,
    change,
    current,
    entry_lines,
    loaded,
    repo_flag,
    show_entries,
)
from kapelle.cli.figures import format_seconds, format_time_left, now, parse_time
from kapelle.cli.layout import check_mark, paint
from kapelle.cli.output import document, say
from kapelle.cli.pages import columns
from kapelle.cli.parser import CliGroup, argument, flag, json_flag, reports
from kapelle.cli.result import Result
from kapelle.cli.states import DONE, WORK_FAILED
from kapelle.cli.text import one_line
from kapelle.cli.values import not_empty
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput

if TYPE_CHECKING:
    from kapelle.client.records import AccountWindowJson, AgentJson, CheckJson, LoginJson

AgentData = dict[str, Any]
# A version takes up to 20 s and a call up to 120 s, and then the daemon tidies up.
TIMEOUT_S = 200.0


agents = CliGroup(
    "agents",
    help="List, check and configure agents." + parser.LISTS_BY_DEFAULT,
    default_command="list",
    examples=["kapelle agents", "kapelle agents check claude --live"],
)


@agents.command("list")
@reports
def list_agents() -> Result:
    """List the known agents, and whether they can be used."""
    items = DaemonConnection().get("/agents", _here())
    styles = [_style(agent) for agent in items]
    lines = columns("NAME,STATUS,LOGIN,MODEL,", _cells, styles=styles)(items)
    return Result(items, lines, _list_remarks(items))


def _cells(agent: "AgentJson") -> list[str]:
    status = "paused" if agent["paused_until"] else agent["status"]
    login = login_words(agent["login"]) if agent["installed"] else ""
    default = "default" if agent["default"] else ""
    return [agent["name"], status, login, agent["model"] or "", default]


def _list_remarks(items: "Sequence[AgentJson]") -> Iterator[str]:
    for agent in items:
        yield from _agent_remarks(agent)
    if not any(agent["default"] for agent in items):
        yield "No default agent is set; `kapelle init` chooses one."


def _here() -> dict[str, str]:
    """Return the directory and the PATH for which agents are looked up."""
    query = {"directory": str(current())}
    if search_path := os.environ.get("PATH"):
        query["path"] = search_path
    return query


def _style(agent: "AgentJson") -> str:
    if agent["paused_until"]:
        return "yellow"
    if agent["status"] == "not installed":
        return "dim"
    return "red" if agent["problem"] else "green"


def _agent_remarks(agent: "AgentJson") -> Iterator[str]:
    """Return what the person should know besides the line in the table."""
    name = agent["name"]
    if agent["paused_until"]:
        soon = format_time_left(agent["paused_until"])
        yield (
            f"{name} is paused and goes on {soon}: {agent['paused_reason']}."
            f" `kapelle agents check {name} --live` lifts it if it works again."
        )
    for window in agent["windows"]:
        yield f"{name}: {_window_words(window)}"
    # A program that is not installed matters only if it is the default.
    if agent["problem"] and (agent["default"] or agent["status"] != "not installed"):
        yield f"{name}: {advice(agent['problem'], agent['hint'])}"
    if stale := _set_here_only(agent["login"]):
        yield (
            f"{name}: {stale} is set here, but the daemon was started without it."
            " `kapelle stop`; the next command starts it with what is set then."
        )


def _window_words(window: "AccountWindowJson") -> str:
    used = window["used"]
    at = parse_time(window["resets_at"])
    if used is None:
        share = "how much is used is unknown"
    else:
        share = f"{used:.0%} used"
    if at and at > now():
        left = format_seconds((at - now()).total_seconds())
    else:
        left = None
    if left:
        reset = f", resets in {left}"
    elif at:
        reset = ", it was reset since"
    else:
        reset = ""
    return f"{one_line(window['name'])} limit: {share}{reset}"


@agents.command("check", examples=["kapelle agents check", "kapelle agents check claude --live"])
@argument(
    "names",
    metavar="NAME",
    nargs=-1,
    required=False,
    help="Names of agents; by default all that are installed.",
)
@flag("--live", help="One real call to the agent, which costs a little.")
@json_flag
def check(names: Sequence[str], live: bool, as_json: bool) -> int:
    """Check whether agents can be used.

    Exits with 1 when a named agent cannot be used.
    """
    client = DaemonConnection()
    typed = [not_empty(name, "The name of an agent").strip() for name in names]
    results = []
    for name in dict.fromkeys(typed) or _installed_agents(client):
        body = {"live": live, **_here()}
        results.append(client.post(_path(name, "/check"), body, timeout=TIMEOUT_S))
        if not as_json:
            _print(results[-1])
    if as_json:
        document(results)
    elif not results:
        say("No coding agent is installed; `kapelle agents` lists the known ones.")
    if typed and not all(result["usable"] for result in results):
        return WORK_FAILED
    return DONE


def _installed_agents(client: DaemonConnection) -> list[str]:
    """Return the installed agents, with the built-in rehearsal only if it is the default."""
    names = []
    for agent in client.get("/agents", _here()):
        is_relevant = agent["default"] or agent["name"] != "rehearsal"
        if agent["installed"] and is_relevant:
            names.append(agent["name"])
    return names


def _print(result: "CheckJson") -> None:
    login = result["agent"]["login"]
    found = login["source"] != "none" or login["verified_at"]
    doubtful = result["usable"] and login["needed"] and not found
    if doubtful:
        sign = paint("!", "yellow")
    else:
        sign = check_mark(result["usable"])
    name = one_line(result["agent"]["name"])
    sys.stdout.write(f"{sign} {name}: {one_line('; '.join(_parts(result)))}\n")
    sys.stdout.flush()


def _parts(result: "CheckJson") -> list[str]:
    agent = result["agent"]
    live = result["live"]
    if not agent["installed"] or (not result["usable"] and live is None):
        return [advice(result["problem"] or agent["status"], result["hint"])]
    if agent["tested"]:
        parts = [describe_version(result["version"], agent["tested"])]
    else:
        parts = []
    if login := login_words(agent["login"]):
        parts.append(f"login: {login}")
    if live is None:
        return [*parts, *_unverified(agent)]
    if live["ok"]:
        return [*parts, f"it answered in {format_seconds(live['duration_s'])}"]
    return [*parts, f"{live['failure']}: {advice(live['reason'] or '', result['hint'])}"]


def _unverified(agent: "AgentJson") -> list[str]:
    name = agent["name"]
    if agent["login"]["verified_at"] or agent["status"] == "installed":
        return [agent["status"]]
    if variable := _set_here_only(agent["login"]):
        return [f"{variable} is set here, but the daemon was started without it: kapelle stop"]
    if agent["login"]["source"] == "none":
        key = f"kapelle agents config set {name} api_key"
        return [f"log in with its own program, or: {key}; --live tries it"]
    return [f"{agent['status']}: --live tries it"]


def advice(problem: str, hint: str | None) -> str:
    """Return a problem with what to type next."""
    if hint:
        return f"{problem.rstrip('.')}. {hint}"
    return problem


def _set_here_only(login: "LoginJson") -> str | None:
    """Return the variable that would be the login if the daemon had it, too."""
    if login["source"] != "none" or os.environ.get("KAPELLE_URL"):
        return None
    return next((name for name in login["variables"] if os.environ.get(name)), None)


API_KEY = "api_key"
_LONGEST_KEY = 10_000
# Settings that define a new agent.
_DEFINING_KEYS = frozenset({"command", "type"})

config = CliGroup(
    "config",
    help="Show and change the settings of agents.",
    default_command="show",
    examples=["kapelle agents config set claude model sonnet"],
)
agents.add_command(config)

name_argument = argument("name", metavar="NAME", help="Name of an agent, such as claude.")


@config.command("show")
@argument(
    "name", metavar="NAME", required=False, help="Name of an agent; by default all that are set up."
)
@reports
def show(name: str | None) -> Result:
    """Show the settings of agents, and where each came from."""
    if name is None:
        entries = [entry for entry in _entries("agents.") if entry[2] != "default"]
        remarks = [] if entries else ["No agent has settings of its own."]
        return replace(show_entries(entries), remarks=remarks)
    _require(name)
    login = DaemonConnection().get(_path(name), {"directory": str(current())})["login"]
    entries = _entries(f"agents.{name}.", name)
    # The key itself stays with the daemon.
    lines = [*entry_lines(entries), f"login: {one_line(login_words(login)) or 'not needed'}"]
    return Result({"settings": show_entries(entries).data, "login": login}, lines)


@config.command(
    "set",
    examples=[
        "kapelle agents config set claude model sonnet",
        "kapelle agents config set claude api_key",
    ],
)
@name_argument
@argument(
    "key",
    metavar="KEY",
    help="Setting: model, base_url, program, extra_args, env.VARIABLE, … or api_key.",
)
@argument(
    "value",
    metavar="VALUE",
    required=False,
    help="Text, or a TOML value; never for api_key, which is asked for.",
)
@repo_flag
@reports
def set_(name: str, key: str, value: str | None, repo: bool) -> Result:
    """Change one setting of an agent."""
    from kapelle.domain.environment import looks_secret

    if key == API_KEY:
        return _store_key(name, value, repo)
    if value is None:
        raise InvalidInput(
            f"{key} needs a value.",
            hint=f"Write `kapelle agents config set {name} {key} VALUE`; "
            f"`kapelle agents config reset {name} {key}` removes the value.",
        )
    if key.partition(".")[0] not in _DEFINING_KEYS:
        _require(name)
    result = change(f"agents.{name}.{key}", value, repo)
    if key.startswith("env.") and looks_secret(key):
        warning = (
            "Everybody who can read the file can read it;"
            f" `kapelle agents config set {name} api_key` stores a key more safely."
        )
        return replace(result, remarks=chain(result.remarks, [warning]))
    return result


@config.command("reset")
@name_argument
@argument(
    "key", metavar="KEY", required=False, help="Setting to reset; by default all but api_key."
)
@repo_flag
@reports
def reset(name: str, key: str | None, repo: bool) -> Result:
    """Remove settings of an agent from the file, so that the defaults apply again."""
    if key == API_KEY:
        return _remove_key(name)
    _require(name)
    return change(f"agents.{name}.{key}" if key else f"agents.{name}", None, repo)


def _remove_key(name: str) -> Result:
    query = {"directory": str(current())}
    is_removed = DaemonConnection().delete(_path(name, "/credential"), query)["removed"]
    data = {"action": "reset", "key": f"agents.{name}.{API_KEY}", "removed": is_removed}
    remark = f"No key of {name} was stored."
    if is_removed:
        remark = f"The key of {name} was removed."
    return Result(data, remarks=[remark])


def _store_key(name: str, value: str | None, repo: bool) -> Result:
    if value is not None:
        raise InvalidInput(
            "A key is not taken from the command line: it would stay in the history of your shell"
            " and in the list of processes.",
            hint=f"Type `kapelle agents config set {name} api_key`, which asks for it,"
            f" or pipe it in: … | kapelle agents config set {name} api_key",
        )
    if repo:
        raise InvalidInput("A key is never stored in a repository.", hint="Leave out --repo.")
    _require(name)
    path = _path(name, "/credential")
    query = {"directory": str(current())}
    agent = DaemonConnection().put(path, {"api_key": _read_key(name)}, query)
    data = {"action": "set", "key": f"agents.{name}.{API_KEY}", "login": agent["login"]}
    remarks = [f"The key of {name} was stored. `kapelle agents check {name} --live` tries it."]
    if agent["login"]["source"] != "stored":
        remarks.append(f"It is not used as long as there is {login_words(agent['login'])}.")
    return Result(data, remarks=remarks)


def _read_key(agent: str) -> str:
    """Return the key from a hidden prompt in a terminal, or from standard input."""
    if sys.stdin.isatty():
        typed = click.prompt(f"API key of {agent} (hidden)", hide_input=True, err=True)
        problem = "Nothing was typed."
    else:
        # More than is allowed, so that the daemon's refusal still names what is wrong.
        typed = sys.stdin.read(_LONGEST_KEY + 100)
        problem = "There is no key on standard input."
    key: str = typed.strip()
    if not key:
        raise InvalidInput(problem, hint="Nothing was changed.")
    return key


def _path(name: str, more: str = "") -> str:
    return f"/agents/{quote(name, safe='')}{more}"


def _require(name: str) -> None:
    """Raise AgentNotFound for a name that no agent has."""
    from kapelle.agents.registry import type_of

    type_of(name, loaded().settings)


def _entries(prefix: str, name: str | None = None) -> list[ConfigEntry]:
    """Return the settings under a prefix; those of a named agent even if it is not set up."""
    from kapelle.settings import AgentSettings, LoadedSettings, Settings

    settings = loaded()
    if name and name not in settings.settings.agents:
        defaults = Settings(agents={name: AgentSettings()})
        settings = LoadedSettings(defaults, defaultdict(lambda: "default"))
    entries = [entry for entry in settings.show() if entry[0].startswith(prefix)]
    return [(key.removeprefix(prefix), value, origin) for key, value, origin in entries]


def login_words(login: "LoginJson") -> str:
    """Return where an agent's credential comes from."""
    if login["source"] in {"environment", "settings"}:
        return f"{login['variable']} ({login['source']})"
    if login["source"] == "none":
        return "none found" if login["needed"] else ""
    if login["source"] == "stored":
        return "stored key"
    return "its own login"
