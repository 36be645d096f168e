"""`kapelle schedule`: create, show, change and end schedules."""

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from kapelle.cli.command import LISTS, Json, Report, command_group, flag, usage_error
from kapelle.cli.ids import ScheduleId, schedule_path
from kapelle.cli.output import data, document, say, wants_json
from kapelle.cli.pages import Limit, listing, status_option, statuses
from kapelle.cli.spec_options import (
    Option,
    Params,
    built_in,
    options_of,
    schemas,
    spec_of,
    spelled,
    with_parameters,
)
from kapelle.cli.start import begin, collecting
from kapelle.client.http import Connection
from kapelle.domain.errors import InvalidInput

STARTING = ("run", *built_in(), "start")

_COMMAND = typer.Argument(
    metavar="COMMAND...",
    help='What to start, as you would type it: run "…" or loop "…" --until ….',
    show_default=False,
)


def create_command() -> Callable[..., None]:
    """`kapelle schedule create`."""
    schema = schemas()["schedule"]
    # What is started each time is made by the command that would start it now.
    options = [option for option in options_of(schema) if option.key not in {"kind", "spec"}]

    def create(**params: Any) -> None:
        _require_trigger(params)
        command = params["command"] or []
        work, its_options = ordered(command)
        body = {**work, **spec_of(options, params)}
        # What is typed behind the command belongs to it, and this is for what is printed now.
        with spelled([*its_options, *options]):
            send(body, params["as_json"] or wants_json(command))

    first = {"command": Annotated[list[str] | None, _COMMAND]}
    return with_parameters(create, schema, first, options, {"as_json": Json})


def _require_trigger(params: Params) -> None:
    """Refuse a schedule without a trigger, with two, or with options that mean nothing to it."""
    triggers = {"--cron": "cron", "--at": "at", "--every": "every_s", "--after": "after"}
    given = [option for option, name in triggers.items() if params[name] is not None]
    if not given:
        raise InvalidInput(
            "No trigger given: use --cron, --at, --every or --after.",
            hint='Write --cron "0 3 * * *", --at 18:30, --every 1h or --after ID first.',
        )
    if len(given) > 1 and given not in (["--cron", "--after"], ["--at", "--after"]):
        raise InvalidInput(f"{' and '.join(given)} exclude each other.", hint="Keep one of them.")
    if given[0] in {"--cron", "--at"}:
        return
    meaningless = {
        "--overlap": params["overlap"] and given == ["--every"],
        "--missed": params["missed"],
        "--timezone": params["timezone"] is not None and params["expires_at"] is None,
    }
    if words := " and ".join(option for option, is_given in meaningless.items() if is_given):
        raise InvalidInput(
            f"{words} cannot stand beside {given[0]}, which goes by successes, not by the clock.",
            hint=f"Leave {words} out, or write --cron or --at.",
        )


def send(body: dict[str, Any], as_json: bool) -> None:
    """Create a schedule and show its id."""
    schedule = begin(Connection(), "/schedules", body)
    if as_json:
        document(schedule)
        return
    data(schedule["id"])
    if sys.stdout.isatty():
        from kapelle.cli.schedule_view import upcoming

        say(f"{upcoming(schedule)}; `kapelle schedule status {schedule['id']}` shows it.")


def ordered(command: list[str]) -> tuple[dict[str, Any], Sequence[Option]]:
    """The work that a command would start, made by that very command, and its options."""
    from kapelle.cli.commands import commands, load

    if not command:
        raise InvalidInput(
            "What is to be started is missing.",
            hint='End the line with a command, such as `run "tidy up" --agent claude`.',
        )
    name, *arguments = command
    if name not in STARTING:
        example = "" if name in commands() else f": for example `run {shlex.quote(name)}`"
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
        return {"kind": "task", "spec": order.body}, order.options
    if order.path == "/runs":
        return {"kind": order.body["pattern"], "spec": order.body["spec"]}, order.options
    raise InvalidInput("A schedule cannot start a schedule.", hint="Leave one of them out.")


_LAST_FIRINGS = 5
# Those of the domain, whose module costs more to import than the rest of a command.
STATUSES = ("active", "paused", "completed", "failed", "cancelled", "expired")

schedule = command_group("Start work later, again and again, or after other work." + LISTS)

# What follows the first word that is no option belongs to the command that is to be started.
schedule.command("create", context_settings={"allow_interspersed_args": False})(create_command())


@schedule.command("list")
def list_schedules(
    status: Annotated[list[str] | None, status_option("schedules", STATUSES)] = None,
    limit: Limit = 20,
) -> Report:
    """List schedules, the newest first."""
    from kapelle.cli.schedule_view import rows

    query = {"status": statuses(status, "schedule", STATUSES)}
    nothing = "No schedules match." if status else "No schedules. `kapelle schedule create --help`"
    return listing("/schedules", query, limit, rows, nothing)


@schedule.command("status")
def status(schedule_id: ScheduleId) -> Report:
    """Show one schedule, with its last firings."""
    from kapelle.cli.schedule_view import describe

    client = Connection()
    found = client.get(schedule_path(schedule_id))
    page = client.get(schedule_path(found["id"], "firings"), {"limit": _LAST_FIRINGS})
    yield {**found, "firings": page["firings"]}
    yield from describe(found, page["firings"])


@schedule.command("history")
def history(schedule_id: ScheduleId, limit: Limit = 50) -> Report:
    """Show what became of a schedule's slots and what each started, the newest first."""
    from kapelle.cli.schedule_view import history as lines

    client = Connection()
    found = client.get(schedule_path(schedule_id))
    path, shown = schedule_path(found["id"], "firings"), partial(lines, schedule=found)
    return listing(path, {}, limit, shown, "No slot has come yet.", client)


@schedule.command("pause")
def pause(schedule_id: ScheduleId) -> Report:
    """Start nothing until it is resumed; what was started goes on."""
    return _change(schedule_id, "pause", None)


@schedule.command("resume")
def resume(schedule_id: ScheduleId) -> Report:
    """Go on with the next slot; those that came meanwhile are not made up for."""
    return _change(schedule_id, "resume", None)


@schedule.command("cancel")
def cancel(
    schedule_id: ScheduleId,
    with_work: Annotated[
        bool, flag("Also what it started and what is still going.", "--with-work")
    ] = False,
) -> Report:
    """End a schedule; what it started goes on unless told otherwise."""
    fate = "is being ended" if with_work else "goes on; `kapelle cancel {0}` ends it"
    return _change(schedule_id, "cancel", {"with_work": with_work}, fate)


@schedule.command("run")
def run(schedule_id: ScheduleId, as_json: Json = False) -> None:
    """Start it now, besides its slots, and print the id of what was started."""
    firing = Connection().post(schedule_path(schedule_id, "run"))
    if as_json:
        document(firing)
    elif firing["subject"]:
        data(firing["subject"])
    else:
        say(f"kapelle: It was not started: {firing['reason']}")
    if not firing["subject"]:
        raise typer.Exit(1)


def _change(schedule_id: str, action: str, body: Any, fate: str = "goes on") -> Report:
    """Change a schedule, and say what becomes of the work that it has going."""
    yield (changed := Connection().post(schedule_path(schedule_id, action), body))
    data(f"{changed['id']}  {changed['status']}")
    for subject in changed["in_flight"]:
        say(f"{subject} {fate.format(subject)}.")
