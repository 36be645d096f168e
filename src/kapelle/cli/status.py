"""`kapelle status`."""

import sys

from kapelle.cli.ids import AnyId, is_run, task_path
from kapelle.cli.options import Json
from kapelle.cli.output import document
from kapelle.client.http import Connection as Client


def status(task_id: AnyId, as_json: Json = False) -> None:
    """Show one task: what was claimed and what was verified; or one run."""
    if is_run(task_id):
        from kapelle.cli.runs.status import show_status

        show_status(Client(), task_id, as_json)
        return
    task = Client().get(task_path(task_id))
    if as_json:
        document(task)
        return
    from kapelle.cli.task_view import describe

    sys.stdout.writelines(f"{line}\n" for line in describe(task))
