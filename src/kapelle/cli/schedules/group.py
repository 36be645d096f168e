"""`kapelle schedule`."""

import sys
from typing import Annotated, Any

import typer

from kapelle.cli.coercion import LightCommand, LightGroup
from kapelle.cli.ids import ScheduleId, schedule_path
from kapelle.cli.options import Json
from kapelle.cli.output import data, document, say
from kapelle.cli.pages import show_list, status_option, statuses
from kapelle.cli.schedules.create import create
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput

_LAST_FIRINGS = 5
# Those of the domain, whose module costs more to import than the rest of a command.
STATUSES = ("active", "paused", "completed", "failed", "cancelled", "expired")

schedule = typer.Typer(
    cls=LightGroup,
    help="Start work later, again and again, or after other work.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)


@schedule.callback()
def _group(ctx: typer.Context, as_json: Json = False) -> None:
    """Start work later, again and again, or after other work.

    Without a command it lists the schedules.
    """
    if ctx.invoked_subcommand is None:
        show(None, 20, as_json)
    elif as_json:
        raise InvalidInput(
            "--json belongs to the command it is for.",
            hint=f"Write `kapelle schedule {ctx.invoked_subcommand} --json …`.",
        )


# What follows the first word that is no option belongs to the command that is to be started.
schedule.command("create", cls=LightCommand, context_settings={"allow_interspersed_args": False})(
    create
)


@schedule.command("list", cls=LightCommand)
def list_schedules(
    status: Annotated[list[str] | None, status_option("schedules", STATUSES)] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    as_json: Json = False,
) -> None:
    """List schedules, the newest first."""
    show(status, limit, as_json)


def show(status: list[str] | None, limit: int, as_json: bool) -> None:
    from kapelle.cli.schedules.view import listing

    query = {"status": statuses(status, "schedule", STATUSES)}
    nothing = "No schedules match." if status else "No schedules. `kapelle schedule create --help`"
    show_list(Client(), "/schedules", query, limit, as_json=as_json, lines=listing, nothing=nothing)


@schedule.command("status", cls=LightCommand)
def status(schedule_id: ScheduleId, as_json: Json = False) -> None:
    """Show one schedule, with its last firings."""
    from kapelle.cli.schedules.view import describe

    client = Client()
    found = client.get(schedule_path(schedule_id))
    page = client.get(schedule_path(found["id"], "firings"), {"limit": _LAST_FIRINGS})
    if as_json:
        document({**found, "firings": page["firings"]})
        return
    sys.stdout.writelines(f"{line}\n" for line in describe(found, page["firings"]))


@schedule.command("history", cls=LightCommand)
def history(
    schedule_id: ScheduleId,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    as_json: Json = False,
) -> None:
    """Show what became of a schedule's slots and what each started, the newest first."""
    from kapelle.cli.schedules.view import history as lines

    client = Client()
    found = client.get(schedule_path(schedule_id))
    show_list(
        client,
        schedule_path(found["id"], "firings"),
        {},
        limit,
        as_json=as_json,
        lines=lambda firings: lines(firings, found),
        nothing="No slot has come yet.",
    )


@schedule.command("pause", cls=LightCommand)
def pause(schedule_id: ScheduleId, as_json: Json = False) -> None:
    """Start nothing until it is resumed; what was started goes on."""
    _change(schedule_id, "pause", None, as_json)


@schedule.command("resume", cls=LightCommand)
def resume(schedule_id: ScheduleId, as_json: Json = False) -> None:
    """Go on with the next slot; those that came meanwhile are not made up for."""
    _change(schedule_id, "resume", None, as_json)


@schedule.command("cancel", cls=LightCommand)
def cancel(
    schedule_id: ScheduleId,
    with_work: Annotated[
        bool, typer.Option("--with-work", help="Also what it started and what is still going.")
    ] = False,
    as_json: Json = False,
) -> None:
    """End a schedule; what it started goes on unless told otherwise."""
    fate = "is being ended" if with_work else "goes on; `kapelle cancel {0}` ends it"
    _change(schedule_id, "cancel", {"with_work": with_work}, as_json, fate)


@schedule.command("run", cls=LightCommand)
def run(schedule_id: ScheduleId, as_json: Json = False) -> None:
    """Start it now, besides its slots, and print the id of what was started."""
    firing = Client().post(schedule_path(schedule_id, "run"))
    if as_json:
        document(firing)
    elif firing["subject"]:
        data(firing["subject"])
    else:
        say(f"kapelle: It was not started: {firing['reason']}")
    if not firing["subject"]:
        raise typer.Exit(1)


def _change(schedule_id: str, action: str, body: Any, as_json: bool, fate: str = "goes on") -> None:
    """Change a schedule, and say what becomes of the work that it has going."""
    changed = Client().post(schedule_path(schedule_id, action), body)
    if as_json:
        document(changed)
        return
    data(f"{changed['id']}  {changed['status']}")
    for subject in changed["in_flight"]:
        say(f"{subject} {fate.format(subject)}.")
