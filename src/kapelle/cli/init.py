"""`kapelle init`."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kapelle.cli.agents import advice
from kapelle.cli.command import Json
from kapelle.cli.config import config_file, current, loaded, root
from kapelle.cli.outcome import INPUT_NEEDED
from kapelle.cli.output import document, say
from kapelle.domain.errors import KapelleError
from kapelle.home import Home

if TYPE_CHECKING:
    from kapelle.settings import Settings

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
    settings, choice = loaded().settings, agent
    done: dict[str, Any] = {"default_agent": settings.default_agent, "found": _found(settings)}
    if agent is None and done["default_agent"] is None:
        choice = _pick(done["found"], ask=sys.stdin.isatty() and not as_json)
    if choice is not None:
        done["default_agent"] = _choose(choice)
    done["chosen"] = choice is not None
    done["repository_config"], done["written"] = _repository_config()
    if as_json:
        document(done)
    else:
        _explain(done)
    if done["default_agent"] is None:
        raise typer.Exit(INPUT_NEEDED)


def _found(settings: "Settings") -> list[str]:
    """Agents that are installed here; the rehearsal is never one of them by itself."""
    from kapelle.agents.registry import REHEARSAL, available

    known = available(settings)
    return [info.name for info in known if info.installed and info.name != REHEARSAL]


def _pick(found: list[str], *, ask: bool) -> str | None:
    if len(found) == 1:
        return found[0]
    if not found or not ask:
        return None
    say("These agents are installed: " + ", ".join(found) + ".")
    answer: str = typer.prompt("Which one by default?", default=found[0], err=True)
    return answer.strip()


def _choose(name: str) -> str:
    """Make an agent the default, even one that is still to be installed."""
    from kapelle.agents.registry import type_of
    from kapelle.settings import set_value

    type_of(name, loaded().settings)
    set_value(Home.default().config, "default_agent", name)
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


def _explain(done: dict[str, Any]) -> None:
    if done["default_agent"]:
        _explain_default(done["default_agent"], done)
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


def _explain_default(name: str, done: dict[str, Any]) -> None:
    from kapelle.agents.registry import describe

    config = Home.default().config
    if not done["chosen"]:
        say(f"The default agent is {name}, as it was set before.")
    elif done["found"] == [name]:
        say(f"{name} is the one agent installed here, and now the default ({config}).")
    else:
        say(f"The default agent is {name} ({config}).")
    try:
        info = describe(name, loaded().settings)
    except KapelleError as error:
        say(error.message)
        return
    if info.problem:
        say(advice(info.problem, info.hint))
