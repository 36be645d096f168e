"""`kapelle merge`."""

from typing import Annotated

import typer

from kapelle.cli.client import Client, task_path
from kapelle.cli.options import Json, TaskId
from kapelle.cli.output import data, document, say


def merge(
    task_id: TaskId,
    into: Annotated[
        str | None,
        typer.Option(metavar="BRANCH", help="The branch to merge into; by default its base."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if the task is not completed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Merge a task's branch into its base."""
    body = {"into": into, "force": force}
    merged = Client().post(task_path(task_id, "merge"), body, timeout=600)
    if as_json:
        document(merged)
        return
    data(merged["commit"])
    if merged["already"]:
        say(f"{merged['base']} already contained it.")
        return
    updated = merged["checkout_updated"]
    where = f"; the checkout {updated} was updated" if updated else ""
    say(f"Merged {merged['task_id']} into {merged['base']}{where}.")
