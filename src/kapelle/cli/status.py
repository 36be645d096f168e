"""`kapelle status`."""

import sys

from kapelle.cli.client import Client, task_path
from kapelle.cli.options import Json, TaskId
from kapelle.cli.output import document


def status(task_id: TaskId, as_json: Json = False) -> None:
    """Show one task: what was claimed and what was verified."""
    task = Client().get(task_path(task_id))
    if as_json:
        document(task)
        return
    from kapelle.cli.task_view import describe

    sys.stdout.writelines(f"{line}\n" for line in describe(task))
