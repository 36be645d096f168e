"""`kapelle agents config`, and where an agent's login comes from."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from kapelle.cli.command import LightCommand, LightGroup
from kapelle.cli.config import Repo, config_path, current, told
from kapelle.cli.format import one_line, paint
from kapelle.cli.options import Json
from kapelle.cli.output import document, say
from kapelle.client.http import Connection
from kapelle.domain.errors import InvalidInput
from kapelle.home import Home

API_KEY = "api_key"
_LONGEST = 10_000


def read_key(agent: str) -> str:
    """The key from a hidden prompt in a terminal, or from standard input."""
    if sys.stdin.isatty():
        typed: str = typer.prompt(f"API key of {agent} (hidden)", hide_input=True, err=True)
        return _checked(typed, "Nothing was typed.")
    # One more than allowed, so that the daemon's refusal still names what is wrong.
    return _checked(sys.stdin.read(_LONGEST + 100), "There is no key on standard input.")


def refuse_on_command_line(agent: str) -> None:
    raise InvalidInput(
        "A key is not taken from the command line: it would stay in the history of your shell"
        " and be seen in the list of processes.",
        hint=f"Type `kapelle agents config set {agent} api_key`, which asks for it,"
        f" or pipe it in: … | kapelle agents config set {agent} api_key",
    )


def warn_of_plain_key(agent: str, key: str) -> None:
    """Say where a key that was set as a variable can be read."""
    from kapelle.settings import looks_secret

    if key.startswith("env.") and looks_secret(key):
        say(
            "It can be read there by whoever reads the file;"
            f" `kapelle agents config set {agent} api_key` stores a key more safely."
        )


def _checked(text: str, problem: str) -> str:
    key = text.strip()
    if not key:
        raise InvalidInput(problem, hint="Nothing was changed.")
    return key


config = typer.Typer(
    cls=LightGroup,
    help="Show and change the settings of agents.",
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="An agent, such as claude.", show_default=False)
]
_KEY_HELP = "model, base_url, program, extra_args, env.VARIABLE, … or api_key."
# Settings that make a program an agent of a new name.
_FOUNDING = frozenset({"command", "type"})

Entry = tuple[str, Any, str]


@config.callback()
def _group() -> None:
    """Show and change the settings of agents."""


@config.command(cls=LightCommand)
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="An agent; without one, what is set of all.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the settings that hold for agents, and where each came from."""
    if name is None:
        entries = [entry for entry in _entries() if entry[2] != "default"]
        _print(entries, None, as_json)
        if not entries and not as_json:
            say("No agent has settings of its own.")
        return
    _require(name)
    login = Connection().get(_path(name), {"directory": str(current())})["login"]
    prefix = f"{name}."
    found = [e for e in _entries(name) if e[0].startswith(prefix)]
    _print([(key.removeprefix(prefix), *rest) for key, *rest in found], login, as_json)


@config.command("set", cls=LightCommand)
def set_(
    name: Name,
    key: Annotated[str, typer.Argument(metavar="KEY", help=_KEY_HELP, show_default=False)],
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="[VALUE]",
            help="Text, or a TOML value; never for api_key, which is asked for.",
            show_default=False,
        ),
    ] = None,
    repo: Repo = False,
    as_json: Json = False,
) -> None:
    """Change one setting of an agent."""
    from kapelle.settings import set_value

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
    path = config_path(repo)
    set_value(path, f"agents.{name}.{key}", value, "repository" if repo else "user")
    told("set", f"agents.{name}.{key}", path, as_json)
    warn_of_plain_key(name, key)


@config.command(cls=LightCommand)
def reset(
    name: Name,
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]", help="One setting; without it, all but api_key.", show_default=False
        ),
    ] = None,
    repo: Repo = False,
    as_json: Json = False,
) -> None:
    """Take settings of an agent out of the file, so that the defaults hold again."""
    from kapelle.settings import reset_value

    if key == API_KEY:
        _forget_key(name, as_json)
        return
    _require(name)
    path, dotted = config_path(repo), f"agents.{name}.{key}" if key else f"agents.{name}"
    reset_value(path, dotted, "repository" if repo else "user")
    told("reset", dotted, path, as_json)


def _store_key(name: str, value: str | None, repo: bool, as_json: bool) -> None:
    if value is not None:
        refuse_on_command_line(name)
    if repo:
        raise InvalidInput("A key is never stored in a repository.", hint="Leave out --repo.")
    _require(name)
    path, query = f"{_path(name)}/credential", {"directory": str(current())}
    agent = Connection().put(path, {"api_key": read_key(name)}, query)
    if as_json:
        document({"action": "set", "key": f"agents.{name}.{API_KEY}", "login": agent["login"]})
        return
    say(f"The key of {name} was stored. `kapelle agents check {name} --live` tries it.")
    if agent["login"]["source"] != "stored":
        say(f"It is not used as long as there is {login_words(agent['login'])}.")


def _forget_key(name: str, as_json: bool) -> None:
    query = {"directory": str(current())}
    removed = Connection().delete(f"{_path(name)}/credential", query)["removed"]
    if as_json:
        document({"action": "reset", "key": f"agents.{name}.{API_KEY}", "removed": removed})
    else:
        say(f"The key of {name} was removed." if removed else f"No key of {name} was stored.")


def _path(name: str) -> str:
    return f"/agents/{quote(name, safe='')}"


def _require(name: str) -> None:
    """Refuse a name that no agent has."""
    from kapelle.agents.registry import type_of
    from kapelle.settings import load

    type_of(name, load(Home.default(), current(), os.environ).settings)


def _entries(name: str | None = None) -> Iterator[Entry]:
    """What holds for the agents that are set up, and for the named one even if it is not."""
    from kapelle.settings import AgentSettings, Loaded, Settings, load

    loaded = load(Home.default(), current(), os.environ)
    if name and name not in loaded.settings.agents:
        nothing = Settings(agents={name: AgentSettings()})
        loaded = Loaded(nothing, defaultdict(lambda: "default"))
    for key, value, origin in loaded.show():
        if key.startswith("agents."):
            yield key.removeprefix("agents."), value, origin


def _print(entries: list[Any], login: dict[str, Any] | None, as_json: bool) -> None:
    if as_json:
        values = {key: {"value": value, "origin": origin} for key, value, origin in entries}
        document(values if login is None else {"settings": values, "login": login})
        return
    for key, value, origin in entries:
        shown = "not set" if value is None else json.dumps(value, ensure_ascii=False)
        note = "" if origin == "default" else paint(f"   # {one_line(origin)}", "dim")
        sys.stdout.write(f"{key} = {one_line(shown)}{note}\n")
    if login is not None:
        # The key itself stays with the daemon.
        sys.stdout.write(f"login: {one_line(login_words(login)) or 'not needed'}\n")


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
