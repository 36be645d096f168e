"""`kapelle schedule create`."""

import shlex
import sys
from typing import Annotated, Any

import typer

from kapelle.cli.errors import wants_json
from kapelle.cli.ids import complete_schedule
from kapelle.cli.misuse import usage_error
from kapelle.cli.options import Json
from kapelle.cli.output import data, document, say
from kapelle.cli.schedules.view import future_time as time_to_come
from kapelle.cli.spec_options import built_in
from kapelle.cli.starting import begin, collecting
from kapelle.cli.values import choice, duration_s, optional_text
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput

STARTING = ("run", *built_in(), "start")

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
    _require_trigger({"--cron": cron, "--at": at, "--every": every, "--after": after})
    if cron is None and at is None:
        without_clock = {
            "--overlap": overlap and every is not None,
            "--missed": missed is not None,
            "--timezone": timezone is not None and expires is None,
        }
        _refuse("--every" if every is not None else "--after", without_clock)
    body = {
        **ordered(command or []),
        "cron": optional_text(cron, "--cron"),
        "at": time_to_come(at, "--at", timezone),
        "every_s": None if every is None else every_s(every),
        "after": optional_text(after, "--after"),
        "timezone": optional_text(timezone, "--timezone"),
        "missed": choice("--missed", missed, ("skip", "catchup", "fail")),
        "overlap": overlap or None,
        "max_runs": max_runs,
        "expires_at": time_to_come(expires, "--expires", timezone),
        "title": optional_text(title, "--title"),
    }
    # What is typed behind the command belongs to it, and this is meant for what is printed now.
    as_json = as_json or wants_json(command or [])
    send({key: value for key, value in body.items() if value is not None}, as_json)


def every_s(text: str) -> float:
    """The value of --every in seconds."""
    seconds = duration_s(text, "--every")
    if seconds < 1:
        raise InvalidInput(
            f"--every must be at least a second, not {text!r}.", hint="Write --every 10m."
        )
    return seconds


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


def _require_trigger(triggers: dict[str, str | None]) -> None:
    given = [option for option, value in triggers.items() if value is not None]
    if not given:
        raise InvalidInput(
            "No trigger given: use --cron, --at, --every or --after.",
            hint='Write --cron "0 3 * * *", --at 18:30, --every 1h or --after ID first.',
        )
    if len(given) > 1 and given not in (["--cron", "--after"], ["--at", "--after"]):
        raise InvalidInput(f"{' and '.join(given)} exclude each other.", hint="Keep one of them.")


def _refuse(trigger: str, meaningless: dict[str, bool]) -> None:
    given = " and ".join(option for option, is_given in meaningless.items() if is_given)
    if given:
        raise InvalidInput(
            f"{given} cannot stand beside {trigger}, which goes by successes, not by the clock.",
            hint=f"Leave {given} out, or write --cron or --at.",
        )
