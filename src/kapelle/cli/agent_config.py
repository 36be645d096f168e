"""`kapelle agents config`, and where an agent's login comes from."""

import sys
from collections import defaultdict
from typing import Annotated, Any
from urllib.parse import quote

import typer

from kapelle.cli.command import Json, LightCommand, argument, command_group
from kapelle.cli.config import Entry, Repo, change, current, loaded, print_entries
from kapelle.cli.format import one_line
from kapelle.cli.output import document, say
from kapelle.client.http import Connection
from kapelle.domain.errors import InvalidInput

API_KEY = "api_key"
_LONGEST_KEY = 10_000
# Settings that make a program an agent of a new name.
_FOUNDING = frozenset({"command", "type"})

config = command_group("Show and change the settings of agents.")

Name = Annotated[str, argument("NAME", "An agent, such as claude.")]


@config.command(cls=LightCommand)
def show(
    name: Annotated[
        str | None, argument("[NAME]", "An agent; without one, what is set of all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the settings that hold for agents, and where each came from."""
    if name is None:
        entries = [entry for entry in _entries("agents.") if entry[2] != "default"]
        print_entries(entries, as_json)
        if not entries and not as_json:
            say("No agent has settings of its own.")
        return
    _require(name)
    login = Connection().get(_path(name), {"directory": str(current())})["login"]
    entries = _entries(f"agents.{name}.", name)
    if as_json:
        values = {key: {"value": value, "origin": origin} for key, value, origin in entries}
        document({"settings": values, "login": login})
        return
    print_entries(entries, as_json)
    # The key itself stays with the daemon.
    sys.stdout.write(f"login: {one_line(login_words(login)) or 'not needed'}\n")


@config.command("set", cls=LightCommand)
def set_(
    name: Name,
    key: Annotated[
        str, argument("KEY", "model, base_url, program, extra_args, env.VARIABLE, … or api_key.")
    ],
    value: Annotated[
        str | None,
        argument("[VALUE]", "Text, or a TOML value; never for api_key, which is asked for."),
    ] = None,
    repo: Repo = False,
    as_json: Json = False,
) -> None:
    """Change one setting of an agent."""
    from kapelle.domain.environment import looks_secret

    if key == API_KEY:
        _store_key(name, value, repo, as_json)
        return
    if value is None:
        raise InvalidInput(
            f"{key} needs a value.",
            hint=f"kapelle agents config set {name} {key} VALUE,"
            f" or to take it back: kapelle agents config reset {name} {key}",
        )
    if key.partition(".")[0] not in _FOUNDING:
        _require(name)
    change(f"agents.{name}.{key}", value, repo, as_json)
    if key.startswith("env.") and looks_secret(key):
        say(
            "It can be read there by whoever reads the file;"
            f" `kapelle agents config set {name} api_key` stores a key more safely."
        )


@config.command(cls=LightCommand)
def reset(
    name: Name,
    key: Annotated[
        str | None, argument("[KEY]", "One setting; without it, all but api_key.")
    ] = None,
    repo: Repo = False,
    as_json: Json = False,
) -> None:
    """Take settings of an agent out of the file, so that the defaults hold again."""
    if key == API_KEY:
        query = {"directory": str(current())}
        removed = Connection().delete(f"{_path(name)}/credential", query)["removed"]
        if as_json:
            document({"action": "reset", "key": f"agents.{name}.{API_KEY}", "removed": removed})
        else:
            say(f"The key of {name} was removed." if removed else f"No key of {name} was stored.")
        return
    _require(name)
    change(f"agents.{name}.{key}" if key else f"agents.{name}", None, repo, as_json)


def _store_key(name: str, value: str | None, repo: bool, as_json: bool) -> None:
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
    path, query = f"{_path(name)}/credential", {"directory": str(current())}
    agent = Connection().put(path, {"api_key": _read_key(name)}, query)
    if as_json:
        document({"action": "set", "key": f"agents.{name}.{API_KEY}", "login": agent["login"]})
        return
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


def _path(name: str) -> str:
    return f"/agents/{quote(name, safe='')}"


def _require(name: str) -> None:
    """Refuse a name that no agent has."""
    from kapelle.agents.registry import type_of

    type_of(name, loaded().settings)


def _entries(prefix: str, name: str | None = None) -> list[Entry]:
    """What holds under a prefix; for an agent that is named, even if it is not set up."""
    from kapelle.settings import AgentSettings, Loaded, Settings

    known = loaded()
    if name and name not in known.settings.agents:
        nothing = Settings(agents={name: AgentSettings()})
        known = Loaded(nothing, defaultdict(lambda: "default"))
    found = [entry for entry in known.show() if entry[0].startswith(prefix)]
    return [(key.removeprefix(prefix), value, origin) for key, value, origin in found]


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
