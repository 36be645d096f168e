"""`kapelle init`."""

import os
import sys
from typing import Annotated, Any

import typer

from kapelle.cli.agents import advice
from kapelle.cli.config import config_file, current, root
from kapelle.cli.options import Json
from kapelle.cli.outcome import INPUT_NEEDED
from kapelle.cli.output import document, say
from kapelle.domain.errors import KapelleError
from kapelle.home import Home

TEMPLATE = """\
# Kapelle's settings for this repository; `kapelle config show` tells which values hold and why.
# Take away the # in front of what you want to change.

# default_agent = "claude"
# project = "my-project"

# What must pass before a task counts as completed, unless the task names its own checks.
# checks = ["make test"]

# [workspace]
# default = "auto"             # auto, worktree or in_place
# copy = [".env"]              # untracked files that a new worktree gets a copy of
# link = ["node_modules"]      # and those it gets a link to
# setup = "make deps"          # runs in a new worktree before the agent

# [tasks]
# timeout_s = 3600
"""


def init(
    agent: Annotated[
        str | None, typer.Option("--agent", help="The agent to use by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose an agent and set up this repository.

    What is already there is never overwritten.
    """
    home = Home.default()
    done: dict[str, Any] = {"default_agent": _current(home), "found": found_agents(home)}
    choice = agent
    if agent is None and done["default_agent"] is None:
        choice = _pick(done["found"], ask=sys.stdin.isatty() and not as_json)
    if choice is not None:
        done["default_agent"] = _choose(home, choice)
    done["chosen"] = choice is not None
    done["repository_config"], done["written"] = _repository_config()
    if as_json:
        document(done)
    else:
        _tell(done, home)
    if done["default_agent"] is None:
        raise typer.Exit(INPUT_NEEDED)


def found_agents(home: Home) -> list[str]:
    """Agents that are installed here; the rehearsal is never one of them by itself."""
    from kapelle.agents.registry import REHEARSAL, available

    known = available(_loaded(home))
    return [info.name for info in known if info.installed and info.name != REHEARSAL]


def _loaded(home: Home) -> Any:
    from kapelle.settings import load

    return load(home, current(), os.environ).settings


def _current(home: Home) -> str | None:
    chosen: str | None = _loaded(home).default_agent
    return chosen


def _pick(found: list[str], *, ask: bool) -> str | None:
    if len(found) == 1:
        return found[0]
    if not found or not ask:
        return None
    say("These agents are installed: " + ", ".join(found) + ".")
    answer: str = typer.prompt("Which one by default?", default=found[0], err=True)
    return answer.strip()


def _choose(home: Home, name: str) -> str:
    """Make an agent the default, even one that is still to be installed."""
    from kapelle.agents.registry import type_of
    from kapelle.settings import set_value

    type_of(name, _loaded(home))
    set_value(home.config, "default_agent", name)
    return name


def _repository_config() -> tuple[str | None, bool]:
    """The repository's config file and whether it was written just now."""
    if root(current()) is None:
        return None, False
    path = config_file(current())
    path.parent.mkdir(exist_ok=True)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        return str(path), False
    return str(path), True


def _tell(done: dict[str, Any], home: Home) -> None:
    if done["default_agent"]:
        _tell_default(done, home)
    elif done["found"]:
        names = " or ".join(f"`kapelle init --agent {name}`" for name in done["found"])
        say(f"Several agents are installed; choose one with {names}.")
    else:
        say("No coding agent was found. Install one such as claude, codex or gemini, or set up any")
        say("""command: kapelle config set agents.NAME.command '["mytool", "{prompt}"]'""")
    if done["repository_config"] is None:
        say("This is not a git repository, so no repository config was written.")
    else:
        verb = "was written" if done["written"] else "is there already and stays as it is"
        say(f"{done['repository_config']} {verb}.")
    if done["default_agent"]:
        say('Next: kapelle run -f "what to do"')


def _tell_default(done: dict[str, Any], home: Home) -> None:
    from kapelle.agents.registry import describe

    name = done["default_agent"]
    if not done["chosen"]:
        say(f"The default agent is {name}, as it was set before.")
    elif done["found"] == [name]:
        say(f"{name} is the one agent installed here, and now the default ({home.config}).")
    else:
        say(f"The default agent is {name} ({home.config}).")
    try:
        info = describe(name, _loaded(home))
    except KapelleError as error:
        say(error.message)
        return
    if info.problem:
        say(advice(info.problem, info.hint))
