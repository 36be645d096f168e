"""`kapelle schedule create`."""

import shlex
import sys
from typing import Annotated, Any

import typer

from kapelle.cli.client import Client
from kapelle.cli.errors import usage_error
from kapelle.cli.ids import complete_schedule
from kapelle.cli.options import Json
from kapelle.cli.output import data, document, say
from kapelle.cli.schedules.to_come import time_to_come
from kapelle.cli.starting import begin, collecting
from kapelle.cli.values import choice, optional_duration_s
from kapelle.domain.errors import InvalidInput

STARTING = ("run", "pipeline", "loop", "team", "best-of", "start")

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="COMMAND...",
        help='What to start, as you would type it: run "…" or loop "…" --until ….',
        show_default=False,
    ),
]


def create(
    command: Words = None,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Minute, hour, day of month, month, day of week."),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Once: 2h, 18:30 or 2026-11-01T18:30.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="At once, then so long after each success."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="When that schedule's work has succeeded; with --cron or --at, not before.",
            autocompletion=complete_schedule,
        ),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="For --cron and --at, as Europe/Berlin; default UTC."),
    ] = None,
    missed: Annotated[
        str | None,
        typer.Option(
            metavar="skip|catchup|fail",
            help="What becomes of slots that nobody saw, default skip; catchup starts one.",
        ),
    ] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Start even while the work before is going.")
    ] = False,
    max_runs: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, metavar="NUMBER", help="At most so often.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start nothing from then on.")
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A short name for lists.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start something later, again and again, or after something else.

    The options of the schedule come first, then the command that it is to start.
    """
    trigger = {
        "cron": cron,
        "at": time_to_come(at, "--at", timezone),
        "every_s": optional_duration_s(every, "--every"),
        "after": after,
    }
    _require_trigger(trigger)
    body = {
        **ordered(command or []),
        **trigger,
        "timezone": timezone,
        "missed": choice("--missed", missed, ("skip", "catchup", "fail")),
        "overlap": overlap or None,
        "max_runs": max_runs,
        "expires_at": time_to_come(expires, "--expires", timezone),
        "title": title,
    }
    send({key: value for key, value in body.items() if value is not None}, as_json)


def send(body: dict[str, Any], as_json: bool) -> None:
    """Create a schedule and show its id."""
    schedule = begin(Client(), "/schedules", body)
    if as_json:
        document(schedule)
        return
    data(schedule["id"])
    if sys.stdout.isatty():
        from kapelle.cli.schedules.view import upcoming

        say(f"{upcoming(schedule)}; `kapelle schedule status {schedule['id']}` shows it.")


def ordered(command: list[str]) -> dict[str, Any]:
    """The work that a command would start, found by having that very command make it."""
    from kapelle.cli.commands import COMMANDS, load

    if not command:
        raise InvalidInput(
            "What is to be started is missing.",
            hint='End the line with a command, such as `run "tidy up" --agent claude`.',
        )
    name, *arguments = command
    if name not in STARTING:
        example = "" if name in COMMANDS else f": for example `run {shlex.quote(name)}`"
        raise InvalidInput(
            f"{name!r} is not a command that starts work.",
            hint=f"Write one of {', '.join(STARTING)}{example}.",
        )
    with collecting() as orders:
        try:
            code = load(name)(arguments, prog_name=f"kapelle {name}", standalone_mode=False)
        except typer.TyperException as error:
            wrong = usage_error(error)
            wrong.hint = f"The options of the schedule come before `{name}`. {wrong.hint}"
            raise wrong from None
        # It only printed its help.
        raise typer.Exit(code if isinstance(code, int) else 0)
    (order,) = orders
    if order.path == "/tasks":
        return {"kind": "task", "spec": order.body}
    if order.path == "/runs":
        return {"kind": order.body["pattern"], "spec": order.body["spec"]}
    raise InvalidInput("A schedule cannot start a schedule.", hint="Leave one of them out.")


def _require_trigger(trigger: dict[str, Any]) -> None:
    given = [name for name in ("cron", "at", "every_s") if trigger[name] is not None]
    options = [f"--{name.removesuffix('_s')}" for name in given]
    if len(options) > 1:
        raise InvalidInput(f"{' and '.join(options)} exclude each other.", hint="Keep one of them.")
    if not options and trigger["after"] is None:
        raise InvalidInput(
            "It is not said when.",
            hint='Before the command add --cron "0 3 * * *", --at 18:30, --every 1h or --after ID.',
        )
