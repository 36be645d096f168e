"""`kapelle runs`."""

from typing import Annotated

import typer

from kapelle.cli.coercion import LightCommand, LightGroup
from kapelle.cli.ids import RunIds, run_path
from kapelle.cli.options import Json
from kapelle.cli.runs import actions, status
from kapelle.cli.runs.listing import list_runs, show_runs
from kapelle.cli.runs.tail import tail
from kapelle.domain.errors import InvalidInput

runs = typer.Typer(
    cls=LightGroup,
    help="List runs, look at them, and pause, answer or end them.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)


@runs.callback()
def _group(ctx: typer.Context, as_json: Json = False) -> None:
    """List runs, look at them, and pause, answer or end them.

    Without a command it lists them.
    """
    if ctx.invoked_subcommand is None:
        show_runs({}, 20, as_json)
    elif as_json:
        raise InvalidInput(
            "--json belongs to the command it is for.",
            hint=f"Write `kapelle runs {ctx.invoked_subcommand} … --json`.",
        )


def wait(
    run_ids: RunIds,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Give up after 90, 90s, 10m or 2h.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Wait until runs have ended.

    Exits with 0 when all are completed, 1 when one failed or was cancelled, 3 when one needs
    input or is paused, 2 when the time is up.
    """
    from kapelle.cli.wait import wait_for

    wait_for(run_ids, timeout, as_json, run_path)


for _name, _command in (
    ("list", list_runs),
    ("status", status.status),
    ("tail", tail),
    ("steps", status.steps),
    ("result", status.result),
    ("wait", wait),
    ("pause", actions.pause),
    ("resume", actions.resume),
    ("cancel", actions.cancel),
    ("answer", actions.answer),
):
    runs.command(_name, cls=LightCommand)(_command)
