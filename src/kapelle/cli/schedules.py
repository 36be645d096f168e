"""`kapelle schedule`: create, show, change and end schedules, and how they are shown."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from kapelle.cli.command import (
    LISTS,
    CommandExit,
    CommandOutput,
    JsonFlag,
    argument,
    command_group,
    command_of,
    flag,
    usage_error,
)
from kapelle.cli.format import (
    STATUS_STYLE,
    clean,
    command_lines,
    field,
    fields,
    heading,
    one_line,
    until,
)
from kapelle.cli.ids import ScheduleId, schedule_path
from kapelle.cli.output import data, document, say, wants_json
from kapelle.cli.pages import Items, LimitOption, columns, listing, status_option, statuses
from kapelle.cli.spec_options import (
    SpecOption,
    built_in,
    options_of,
    schemas,
    spec_of,
    spelled,
    with_parameters,
)
from kapelle.cli.start import starter_of
from kapelle.cli.values import refuse, zone
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput
from kapelle.domain.times import format_duration

ScheduleFields = dict[str, Any]

STARTING = ("run", *built_in(), "start")

_COMMAND = 'What to start, as you would type it: run "…" or loop "…" --until ….'


def create_command() -> Callable[..., None]:
    """`kapelle schedule create`."""
    schema = schemas()["schedule"]
    # What is started each time is made by the command that would start it now.
    options = [option for option in options_of(schema) if option.key not in {"kind", "spec"}]

    def create(**params: Any) -> None:
        command = params["command"] or []
        work, its_options = ordered(command)
        body = {**work, **spec_of(options, params)}
        # What is typed behind the command belongs to it, and this is for what is printed now.
        with spelled([*its_options, *options]):
            send(body, params["as_json"] or wants_json(command))

    first = {"command": Annotated[list[str] | None, argument("COMMAND...", _COMMAND)]}
    return with_parameters(create, schema, first, options, {"as_json": JsonFlag})


def send(body: dict[str, Any], as_json: bool) -> None:
    """Create a schedule and show its id."""
    schedule = DaemonConnection().create("/schedules", body)
    if as_json:
        document(schedule)
        return
    data(schedule["id"])
    if sys.stdout.isatty():
        say(f"{upcoming(schedule)}; `kapelle schedule status {schedule['id']}` shows it.")


def ordered(command: list[str]) -> tuple[dict[str, Any], Sequence[SpecOption]]:
    """The work that a command would start, made by that very command, and its options."""
    from kapelle.cli.commands import commands

    if not command:
        raise InvalidInput(
            "What is to be started is missing.",
            hint='End the line with a command, such as `run "tidy up" --agent claude`.',
        )
    name, *arguments = command
    if name not in STARTING:
        if name in commands():
            example = ""
        else:
            example = f": for example `run {shlex.quote(name)}`"
        raise InvalidInput(
            f"{name!r} is not a command that starts work.",
            hint=f"Write one of {', '.join(STARTING)}{example}.",
        )
    new = "A schedule starts new runs, and --resume goes on with one."
    another = "A schedule cannot start a schedule."
    try:
        starter, words = starter_of(name, arguments)
        made = command_of(starter.command(), starter.typed)
        params = made.make_context(f"kapelle {starter.typed}", words).params
        goes_on = params.get("resume") or params.get("answer")
        refuse(
            (params.get("every") is not None, another, "Leave one of them out."),
            (goes_on, new, "Leave --resume and --answer out."),
        )
        path, body = starter.order(params)
    except typer.TyperException as error:
        wrong = usage_error(error)
        # In such a line options may stand in the wrong place.
        wrong.hint = f"The options of the schedule come before `{name}`. {wrong.hint}"
        raise wrong from None
    kind, spec = ("task", body) if path == "/tasks" else (body["pattern"], body["spec"])
    return {"kind": kind, "spec": spec}, starter.options


_LAST_FIRINGS = 5
# Those of the domain, whose module costs more to import than the rest of a command.
STATUSES = ("active", "paused", "completed", "failed", "cancelled", "expired")

schedule = command_group("Start work later, again and again, or after other work." + LISTS)

# What follows the first word that is no option belongs to the command that is to be started.
schedule.command("create", context_settings={"allow_interspersed_args": False})(create_command())


@schedule.command("list")
def list_schedules(
    status: list[str] | None = status_option("schedules", STATUSES),
    limit: LimitOption = 20,
) -> CommandOutput:
    """List schedules, the newest first."""
    query = {"status": statuses(status, STATUSES)}
    if status:
        nothing = "No schedules match."
    else:
        nothing = "No schedules. `kapelle schedule create --help`"
    return listing("/schedules", query, limit, schedule_rows, nothing)


@schedule.command("status")
def status(schedule_id: ScheduleId) -> CommandOutput:
    """Show one schedule, with its last firings."""
    client = DaemonConnection()
    found = client.get(schedule_path(schedule_id))
    page = client.get(schedule_path(found["id"], "firings"), {"limit": _LAST_FIRINGS})
    yield {**found, "firings": page["firings"]}
    yield from describe(found, page["firings"])


@schedule.command("history")
def history(schedule_id: ScheduleId, limit: LimitOption = 50) -> CommandOutput:
    """Show what became of a schedule's slots and what each started, the newest first."""
    client = DaemonConnection()
    found = client.get(schedule_path(schedule_id))
    path = schedule_path(found["id"], "firings")
    shown = partial(firing_rows, schedule=found)
    return listing(path, {}, limit, shown, "No slot has come yet.", client)


@schedule.command("pause")
def pause(schedule_id: ScheduleId) -> CommandOutput:
    """Start nothing until it is resumed; what was started goes on."""
    return _change(schedule_id, "pause", None)


@schedule.command("resume")
def resume(schedule_id: ScheduleId) -> CommandOutput:
    """Go on with the next slot; those that came meanwhile are not made up for."""
    return _change(schedule_id, "resume", None)


@schedule.command("cancel")
def cancel(
    schedule_id: ScheduleId,
    with_work: bool = flag("Also what it started and what is still going."),
) -> CommandOutput:
    """End a schedule; what it started goes on unless told otherwise."""
    if with_work:
        fate = "is being ended"
    else:
        fate = "goes on; `kapelle cancel {0}` ends it"
    return _change(schedule_id, "cancel", {"with_work": with_work}, fate)


@schedule.command("run")
def run(schedule_id: ScheduleId) -> CommandOutput:
    """Start it now, besides its slots, and print the id of what was started."""
    firing = DaemonConnection().post(schedule_path(schedule_id, "run"))
    yield CommandExit(firing, 0 if firing["subject"] else 1)
    if firing["subject"]:
        data(firing["subject"])
    else:
        say(f"kapelle: It was not started: {firing['reason']}")


def _change(schedule_id: str, action: str, body: Any, fate: str = "goes on") -> CommandOutput:
    """Change a schedule, and say what becomes of the work that it has going."""
    yield (changed := DaemonConnection().post(schedule_path(schedule_id, action), body))
    data(f"{changed['id']}  {changed['status']}")
    for subject in changed["in_flight"]:
        say(f"{subject} {fate.format(subject)}.")


_STYLES = {**STATUS_STYLE, "active": "cyan", "expired": "dim", "started": "green", "missed": "red"}
_MISSED = {"skip": "skipped", "catchup": "made up for by one start", "fail": "the schedule fails"}
_ENDED = frozenset({"completed", "failed", "cancelled", "expired"})


schedule_rows = columns("ID,STATUS,WHEN,NEXT,RUNS,TITLE", lambda one: [
    one["id"], one["status"], one_line(trigger(one), 50), until(one["next_at"]), _runs(one),
    _title(one),
], _STYLES, fold=(2, 3, 4))  # fmt: skip


def describe(schedule: ScheduleFields, firings: Items) -> Iterator[str]:
    """The lines of the human view, ready for the terminal."""
    yield from heading(schedule, schedule["reason"], _STYLES)
    # The first words of what it is about.
    words = schedule["spec"].get("prompt") or schedule["spec"].get("goal") or ""
    timed = schedule["cron"] or schedule["at"]
    soon = schedule["next_at"]
    facts = {
        "starts": one_line(f"{schedule['kind']} {words}", 100),
        "directory": clean(schedule["directory"]),
        "when": one_line(trigger(schedule)),
        "next": soon and f"{_clock(soon, schedule)}, {until(soon)}",
        "missed": _MISSED[schedule["missed"]] if timed else None,
        "overlap": "allowed" if schedule["overlap"] else "no",
        "expires": _clock(schedule["expires_at"], schedule),
        "runs": _runs(schedule),
        "going": " ".join(schedule["in_flight"]),
    }
    yield from fields(facts)
    if firings:
        yield field("firings", "")
        yield from firing_rows(firings, schedule, indent=4)
    yield from command_lines(_commands(schedule))


def firing_rows(firings: Items, schedule: ScheduleFields, indent: int = 0) -> list[str]:
    """What became of slots, by the clock of their schedule."""
    return columns("SLOT,OUTCOME,STARTED,STATUS,REASON", lambda firing: [
        _clock(firing["slot"], schedule), firing["outcome"], firing["subject"] or "",
        firing["subject_status"] or "", firing["reason"] or "",
    ], _STYLES, indent=indent, fold=(2, 3, 4))(firings)  # fmt: skip


def trigger(schedule: ScheduleFields) -> str:
    """When it starts something, in a few words."""
    if schedule["after"]:
        follows = f" after {schedule['after']}"
    else:
        follows = ""
    if schedule["cron"]:
        if schedule["timezone"] == "UTC":
            zone = ""
        else:
            zone = f" {schedule['timezone']}"
        return f"{schedule['cron']}{zone}{follows}"
    if schedule["at"]:
        return f"at {_clock(schedule['at'], schedule)}{follows}"
    if schedule["every_s"]:
        return f"every {format_duration(schedule['every_s'])}"
    return follows.strip()


def upcoming(schedule: ScheduleFields) -> str:
    """What comes next, as the beginning of a sentence."""
    if schedule["next_at"] is None:
        return f"It {schedule['reason'] or 'waits'}"
    return f"Next at {_clock(schedule['next_at'], schedule)}, {until(schedule['next_at'])}"


def _title(schedule: ScheduleFields) -> str:
    waits = schedule["reason"] and schedule["status"] not in {"completed", "cancelled"}
    if waits:
        return f"{schedule['title']} ({schedule['reason']})"
    return str(schedule["title"])


def _runs(schedule: ScheduleFields) -> str:
    if schedule["max_runs"]:
        most = f" of {schedule['max_runs']}"
    else:
        most = ""
    return f"{schedule['started']}{most}"


def _clock(text: str | None, schedule: ScheduleFields) -> str:
    """A moment in the schedule's own zone; empty when there is none."""
    if text is None:
        return ""
    try:
        place = zone(schedule["timezone"])
    except InvalidInput:
        place = UTC  # the daemon may know zones that this machine does not
    return f"{datetime.fromisoformat(text).astimezone(place):%Y-%m-%d %H:%M:%S %Z}"


def _commands(schedule: ScheduleFields) -> list[tuple[str, str]]:
    name = schedule["id"]
    found = [(f"kapelle schedule history {name}", "what became of its slots")]
    if schedule["status"] == "active":
        found.append((f"kapelle schedule pause {name}", "start nothing until it is resumed"))
    elif schedule["status"] == "paused":
        found.append((f"kapelle schedule resume {name}", "go on with the next slot"))
    if schedule["status"] not in _ENDED:
        found.append((f"kapelle schedule run {name}", "start it now, besides its slots"))
        found.append((f"kapelle schedule cancel {name}", "end it"))
    return found
