"""`kapelle agents`, `kapelle agents check` and `kapelle agents config`."""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from kapelle.agents.versions import describe_version
from kapelle.cli.command import LISTS, CommandOutput, JsonFlag, argument, command_group, flag
from kapelle.cli.config import ConfigEntry, Repo, change, current, loaded, shown_entries
from kapelle.cli.format import WORK_FAILED, mark, moment, now, one_line, paint, short, until
from kapelle.cli.output import document, say
from kapelle.cli.pages import columns
from kapelle.cli.values import not_empty
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput

if TYPE_CHECKING:
    from kapelle.client.records import LoginJson

AgentData = dict[str, Any]
# A version takes up to 20 s and a call up to 120 s, and then the daemon tidies up.
TIMEOUT_S = 200.0


def list_agents() -> CommandOutput:
    """List the agents that are known, and whether they can be used."""
    yield (known := DaemonConnection().get("/agents", _here()))
    yield from columns("NAME,STATUS,LOGIN,MODEL,", lambda agent: [
        agent["name"], "paused" if agent["paused_until"] else agent["status"],
        login_words(agent["login"]) if agent["installed"] else "", agent["model"] or "",
        "default" if agent["default"] else "",
    ], styles=[*map(_style, known)])(known)  # fmt: skip
    sys.stdout.flush()
    for text in (text for agent in known for text in _remarks(agent)):
        say(text)
    if not any(agent["default"] for agent in known):
        say("No default agent is set; `kapelle init` chooses one.")


def _here() -> dict[str, str]:
    """The directory and the PATH for which agents are looked up."""
    query = {"directory": str(current())}
    if search_path := os.environ.get("PATH"):
        query["path"] = search_path
    return query


def _style(agent: dict[str, Any]) -> str:
    if agent["paused_until"]:
        return "yellow"
    if agent["status"] == "not installed":
        return "dim"
    return "red" if agent["problem"] else "green"


def _remarks(agent: AgentData) -> Iterator[str]:
    """What the person should know besides the line in the table."""
    name = agent["name"]
    if agent["paused_until"]:
        soon = until(agent["paused_until"])
        yield (
            f"{name} is paused and goes on {soon}: {agent['paused_reason']}."
            f" `kapelle agents check {name} --live` lifts it if it works again."
        )
    for window in agent["windows"]:
        yield f"{name}: {_window_words(window)}"
    # That one of the programs is not installed is no news, unless it is the one to use.
    if agent["problem"] and (agent["default"] or agent["status"] != "not installed"):
        yield f"{name}: {advice(agent['problem'], agent['hint'])}"
    if stale := _set_here_only(agent["login"]):
        yield (
            f"{name}: {stale} is set here, but the daemon was started without it."
            " `kapelle stop`; the next command starts it with what is set then."
        )


def _window_words(window: dict[str, Any]) -> str:
    used = window["used"]
    at = moment(window["resets_at"])
    if used is None:
        share = "how much is used is unknown"
    else:
        share = f"{used:.0%} used"
    if at and at > now():
        left = short((at - now()).total_seconds())
    else:
        left = None
    if left:
        reset = f", resets in {left}"
    elif at:
        reset = ", it was reset since"
    else:
        reset = ""
    return f"{one_line(window['name'])} limit: {share}{reset}"


def check(
    names: list[str] | None = argument("[NAME]...", "Agents; without one, all installed."),
    live: bool = flag("Also make one real call, which costs a little."),
    as_json: JsonFlag = False,
) -> None:
    """Find out whether agents can be used.

    Exits with 1 when one that was named cannot.
    """
    client = DaemonConnection()
    here = _here()
    named = [not_empty(name, "The name of an agent").strip() for name in names or []]
    found = []
    if named:
        known = []
    else:
        known = client.get("/agents", here)
    # The built-in rehearsal is always there, and no news unless it is what tasks get.
    real = [one for one in known if one["default"] or one["name"] != "rehearsal"]
    for name in dict.fromkeys(named) or [one["name"] for one in real if one["installed"]]:
        body = {"live": live, **here}
        found.append(client.post(_path(name, "/check"), body, timeout=TIMEOUT_S))
        if not as_json:
            _print(found[-1])
    if as_json:
        document(found)
    elif not found:
        say("No coding agent is installed; `kapelle agents` lists those that are known.")
    if named and not all(result["usable"] for result in found):
        raise typer.Exit(WORK_FAILED)


def _print(result: dict[str, Any]) -> None:
    login = result["agent"]["login"]
    found = login["source"] != "none" or login["verified_at"]
    doubtful = result["usable"] and login["needed"] and not found
    if doubtful:
        sign = paint("!", "yellow")
    else:
        sign = mark(result["usable"])
    name = one_line(result["agent"]["name"])
    sys.stdout.write(f"{sign} {name}: {one_line('; '.join(_parts(result)))}\n")
    sys.stdout.flush()


def _parts(result: dict[str, Any]) -> list[str]:
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
        return [*parts, f"it answered in {short(live['duration_s'])}"]
    return [*parts, f"{live['failure']}: {advice(live['reason'], result['hint'])}"]


def _unverified(agent: dict[str, Any]) -> list[str]:
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
    """A problem and what to type next."""
    if hint:
        return f"{problem.rstrip('.')}. {hint}"
    return problem


def _set_here_only(login: dict[str, Any]) -> str | None:
    """A variable that would be the login, if the daemon had it too."""
    if login["source"] != "none" or os.environ.get("KAPELLE_URL"):
        return None
    return next((name for name in login["variables"] if os.environ.get(name)), None)


API_KEY = "api_key"
_LONGEST_KEY = 10_000
# Settings that make a program an agent of a new name.
_FOUNDING = frozenset({"command", "type"})

config = command_group("Show and change the settings of agents.")

AgentNameArgument = Annotated[str, argument("NAME", "An agent, such as claude.")]


@config.command()
def show(
    name: str | None = argument("[NAME]", "An agent; without one, what is set of all."),
) -> CommandOutput:
    """Show the settings that hold for agents, and where each came from."""
    if name is None:
        entries = [entry for entry in _entries("agents.") if entry[2] != "default"]
        yield from shown_entries(entries)
        if not entries:
            say("No agent has settings of its own.")
        return
    _require(name)
    login = DaemonConnection().get(_path(name), {"directory": str(current())})["login"]
    settings, *lines = shown_entries(_entries(f"agents.{name}.", name))
    yield {"settings": settings, "login": login}
    # The key itself stays with the daemon.
    yield from [*lines, f"login: {one_line(login_words(login)) or 'not needed'}"]


@config.command("set")
def set_(
    name: AgentNameArgument,
    key: str = argument("KEY", "model, base_url, program, extra_args, env.VARIABLE, … or api_key."),
    value: str | None = argument(
        "[VALUE]", "Text, or a TOML value; never for api_key, which is asked for."
    ),
    repo: Repo = False,
) -> CommandOutput:
    """Change one setting of an agent."""
    from kapelle.domain.environment import looks_secret

    if key == API_KEY:
        yield from _store_key(name, value, repo)
        return
    if value is None:
        raise InvalidInput(
            f"{key} needs a value.",
            hint=f"kapelle agents config set {name} {key} VALUE,"
            f" or to take it back: kapelle agents config reset {name} {key}",
        )
    if key.partition(".")[0] not in _FOUNDING:
        _require(name)
    yield from change(f"agents.{name}.{key}", value, repo)
    if key.startswith("env.") and looks_secret(key):
        say(
            "It can be read there by whoever reads the file;"
            f" `kapelle agents config set {name} api_key` stores a key more safely."
        )


@config.command()
def reset(
    name: AgentNameArgument,
    key: str | None = argument("[KEY]", "One setting; without it, all but api_key."),
    repo: Repo = False,
) -> CommandOutput:
    """Take settings of an agent out of the file, so that the defaults hold again."""
    if key == API_KEY:
        query = {"directory": str(current())}
        removed = DaemonConnection().delete(_path(name, "/credential"), query)["removed"]
        yield {"action": "reset", "key": f"agents.{name}.{API_KEY}", "removed": removed}
        say(f"The key of {name} was removed." if removed else f"No key of {name} was stored.")
        return
    _require(name)
    yield from change(f"agents.{name}.{key}" if key else f"agents.{name}", None, repo)


def _store_key(name: str, value: str | None, repo: bool) -> CommandOutput:
    if value is not None:
        raise InvalidInput(
            "A key is not taken from the command line: it would stay in the history of your shell"
            " and be seen in the list of processes.",
            hint=f"Type `kapelle agents config set {name} api_key`, which asks for it,"
            f" or pipe it in: … | kapelle agents config set {name} api_key",
        )
    if repo:
        raise InvalidInput("A key is never stored in a repository.", hint="Leave out --repo.")
    _require(name)
    path = _path(name, "/credential")
    query = {"directory": str(current())}
    agent = DaemonConnection().put(path, {"api_key": _read_key(name)}, query)
    yield {"action": "set", "key": f"agents.{name}.{API_KEY}", "login": agent["login"]}
    say(f"The key of {name} was stored. `kapelle agents check {name} --live` tries it.")
    if agent["login"]["source"] != "stored":
        say(f"It is not used as long as there is {login_words(agent['login'])}.")


def _read_key(agent: str) -> str:
    """The key from a hidden prompt in a terminal, or from standard input."""
    if sys.stdin.isatty():
        typed = typer.prompt(f"API key of {agent} (hidden)", hide_input=True, err=True)
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
    """Refuse a name that no agent has."""
    from kapelle.agents.registry import type_of

    type_of(name, loaded().settings)


def _entries(prefix: str, name: str | None = None) -> list[ConfigEntry]:
    """What holds under a prefix; for an agent that is named, even if it is not set up."""
    from kapelle.settings import AgentSettings, LoadedSettings, Settings

    known = loaded()
    if name and name not in known.settings.agents:
        nothing = Settings(agents={name: AgentSettings()})
        known = LoadedSettings(nothing, defaultdict(lambda: "default"))
    found = [entry for entry in known.show() if entry[0].startswith(prefix)]
    return [(key.removeprefix(prefix), value, origin) for key, value, origin in found]


def login_words(login: "LoginJson") -> str:
    """Where an agent's credential comes from."""
    if login["source"] in {"environment", "settings"}:
        return f"{login['variable']} ({login['source']})"
    if login["source"] == "none":
        return "none found" if login["needed"] else ""
    if login["source"] == "stored":
        return "stored key"
    return "its own login"


agents = command_group("List agents, try them out and set them up." + LISTS)
agents.command("list")(list_agents)
agents.command("check")(check)
agents.add_typer(config, name="config")
