"""Options and arguments that several commands share."""

from typing import Annotated

import typer


def complete_task(incomplete: str) -> list[tuple[str, str]]:
    """Ids for the shell, asked of a running daemon only."""
    from kapelle.cli.client import Client
    from kapelle.cli.text import one_line

    try:
        tasks = Client(autostart=False).get("/tasks", {"limit": 100}, timeout=2)["tasks"]
    except Exception:
        # A completion must never disturb the line that is being typed.
        return []
    return [
        (task["id"], f"{task['status']}: {one_line(task['title'], 50)}")
        for task in tasks
        if task["id"].startswith(incomplete)
    ]


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
TaskId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The task's id, or the beginning of it.",
        autocompletion=complete_task,
        show_default=False,
    ),
]
TaskIds = Annotated[
    list[str],
    typer.Argument(
        metavar="ID...",
        help="Ids of tasks, or their beginnings.",
        autocompletion=complete_task,
        show_default=False,
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what happens.")]
