"""`kapelle agents`."""

import sys
from typing import Any

import typer

from kapelle.cli.agent_check import check
from kapelle.cli.agent_config import config
from kapelle.cli.agent_words import login_words, remarks
from kapelle.cli.coercion import LightCommand, LightGroup
from kapelle.cli.options import Json
from kapelle.cli.output import document, say
from kapelle.cli.style import table
from kapelle.cli.text import one_line
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput

agents = typer.Typer(
    cls=LightGroup,
    help="List agents, try them out and set them up.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)

_STYLES = {"verified": "green", "installed": "green", "not installed": "dim"}


@agents.callback()
def _group(ctx: typer.Context, as_json: Json = False) -> None:
    """List agents, try them out and set them up.

    Without a command it lists them.
    """
    if ctx.invoked_subcommand is None:
        show(as_json)
    elif as_json:
        raise InvalidInput(
            "--json belongs to the command it is for.",
            hint=f"Write `kapelle agents {ctx.invoked_subcommand} … --json`.",
        )


@agents.command("list", cls=LightCommand)
def list_agents(as_json: Json = False) -> None:
    """List the agents that are known, and whether they can be used."""
    show(as_json)


def show(as_json: bool) -> None:
    from kapelle.cli.spec_options import absolute_directory

    known = Client().get("/agents", {"directory": absolute_directory(None)})
    if as_json:
        document(known)
        return
    lines = table(
        ["NAME", "STATUS", "LOGIN", "MODEL", ""],
        [_row(agent) for agent in known],
        [_style(agent) for agent in known],
    )
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    for agent in known:
        for remark in remarks(agent):
            say(remark)
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
    for beginning, style in _STYLES.items():
        if agent["status"].startswith(beginning):
            return style
    return "red"


agents.command("check", cls=LightCommand)(check)
agents.add_typer(config, name="config")
