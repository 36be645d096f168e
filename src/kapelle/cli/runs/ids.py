"""Ids of runs on the command line: their paths in the API, and their completion."""

from typing import Annotated
from urllib.parse import quote

import typer

from kapelle.cli.options import complete_task
from kapelle.domain.errors import InvalidInput

_PREFIX = "run_"


def is_run(text: str) -> bool:
    """Whether what was typed is the id of a run, or the beginning of one."""
    return text.strip().lower().startswith(_PREFIX)


def run_path(run_id: str, *more: str) -> str:
    """The path of a run's resource; any unique prefix of its id will do."""
    if not run_id.strip():
        raise InvalidInput(
            "An empty text is not a run id.", hint="`kapelle runs list` shows the ids."
        )
    return "/".join(["/runs", quote(run_id.strip(), safe=""), *more])


def complete_run(incomplete: str) -> list[tuple[str, str]]:
    """Ids for the shell, asked of a running daemon only."""
    from kapelle.cli.client import Client
    from kapelle.cli.text import one_line

    try:
        runs = Client(autostart=False).get("/runs", {"limit": 100}, timeout=2)["runs"]
    except Exception:
        # A completion must never disturb the line that is being typed.
        return []
    return [
        (run["id"], f"{run['status']} {run['pattern']}: {one_line(run['title'], 50)}")
        for run in runs
        if run["id"].startswith(incomplete)
    ]


def complete_any(incomplete: str) -> list[tuple[str, str]]:
    """Ids of tasks and of runs."""
    return [*complete_task(incomplete), *complete_run(incomplete)]


RunId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The run's id, or the beginning of it.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
RunIds = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...",
        help="Ids of runs, or their beginnings.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
AnyId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The id of a task or a run, or the beginning of it.",
        autocompletion=complete_any,
        show_default=False,
    ),
]
AnyIds = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...",
        help="Ids of tasks and runs, or their beginnings.",
        autocompletion=complete_any,
        show_default=False,
    ),
]
