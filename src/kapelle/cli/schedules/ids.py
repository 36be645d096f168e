"""Ids of schedules on the command line: their paths in the API, and their completion."""

from typing import Annotated
from urllib.parse import quote

import typer

from kapelle.domain.errors import InvalidInput


def schedule_path(schedule_id: str, *more: str) -> str:
    """The path of a schedule's resource; any unique prefix of its id will do."""
    if not schedule_id.strip():
        raise InvalidInput(
            "An empty text is not a schedule id.", hint="`kapelle schedule list` shows the ids."
        )
    return "/".join(["/schedules", quote(schedule_id.strip(), safe=""), *more])


def complete_schedule(incomplete: str) -> list[tuple[str, str]]:
    """Ids for the shell, asked of a running daemon only."""
    from kapelle.cli.client import Client
    from kapelle.cli.text import one_line

    try:
        found = Client(autostart=False).get("/schedules", {"limit": 100}, timeout=2)["schedules"]
    except Exception:
        # A completion must never disturb the line that is being typed.
        return []
    return [
        (schedule["id"], f"{schedule['status']}: {one_line(schedule['title'], 50)}")
        for schedule in found
        if schedule["id"].startswith(incomplete)
    ]


ScheduleId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The schedule's id, or the beginning of it.",
        autocompletion=complete_schedule,
        show_default=False,
    ),
]
