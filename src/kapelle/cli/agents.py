"""`kapelle agents`."""

import sys
from typing import Any

from kapelle.cli.client import Client
from kapelle.cli.options import Json
from kapelle.cli.output import document, say
from kapelle.cli.style import table
from kapelle.cli.text import one_line


def agents(as_json: Json = False) -> None:
    """List the agents that are known and which are installed."""
    from kapelle.cli.task_spec import absolute_directory

    known = Client().get("/agents", {"directory": absolute_directory(None)})
    if as_json:
        document(known)
        return
    rows = [_row(agent) for agent in known]
    styles = ["green" if agent["installed"] else "dim" for agent in known]
    lines = table(["NAME", "INSTALLED", "TYPE", "DEFAULT", "WHERE"], rows, styles)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if not any(agent["default"] for agent in known):
        say("No default agent is set; `kapelle init` chooses one.")


def _row(agent: dict[str, Any]) -> list[str]:
    installed = agent["installed"]
    return [
        one_line(agent["name"]),
        "yes" if installed else "no",
        one_line(agent["type"]),
        "default" if agent["default"] else "",
        one_line(installed or agent.get("problem") or ""),
    ]
