"""`kapelle merge`."""

from typing import Annotated

import typer

from kapelle.cli.ids import AnyId, path_of
from kapelle.cli.options import Json
from kapelle.cli.output import data, document, say
from kapelle.client.http import Connection as Client


def merge(
    task_id: AnyId,
    into: Annotated[
        str | None,
        typer.Option(metavar="BRANCH", help="The branch to merge into; by default its base."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if it is not completed.")] = False,
    as_json: Json = False,
) -> None:
    """Merge the branch of a task or a run into its base."""
    body = {"into": into, "force": force}
    merged = Client().post(path_of(task_id, "merge"), body, timeout=600)
    if as_json:
        document(merged)
        return
    data(merged["commit"])
    if merged["already"]:
        say(f"{merged['base']} already contained it.")
        return
    updated = merged["checkout_updated"]
    where = f"; the checkout {updated} was updated" if updated else ""
    say(f"Merged {merged['id']} into {merged['base']}{where}.")
