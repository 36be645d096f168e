"""`kapelle schedule`: create, show, change and cancel schedules."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from kapelle.cli import parser
from kapelle.cli.field_errors import name_options
from kapelle.cli.figures import format_time_left
from kapelle.cli.ids import id_argument, schedule_path
from kapelle.cli.layout import STATUS_STYLE, command_lines, field_line, field_lines, paint
from kapelle.cli.output import plain_line, wants_json
from kapelle.cli.pages import Items, columns, limit_option, listing, status_option, statuses
from kapelle.cli.parser import CliArgument, CliCommand, CliGroup, flag, reports
from kapelle.cli.result import Result
from kapelle.cli.schema import built_in_patterns, schemas
from kapelle.cli.spec_options import SpecOption, options_of, params_of
from kapelle.cli.spec_values import read_spec
from kapelle.cli.start import find_starter
from kapelle.cli.text import clean, one_line
from kapelle.cli.usage_errors import translate
from kapelle.cli.values import refuse, zone
from kapelle.cli.view import heading_lines
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput
from kapelle.domain.times import format_duration

if TYPE_CHECKING:
    from kapelle.client.records import FiringJson, ScheduleJson


# Commands that a schedule can start.
STARTING = ("run", *built_in_patterns(), "start")

schedule = CliGroup(
    "schedule",
    help="Start work later, again and again, or after other work." + parser.LISTS_BY_DEFAULT,
    default_command="list",
    examples=[
        'kapelle schedule create --cron "0 3 * * *" run "update the dependencies"',
        "kapelle schedule list",
    ],
)

# The work is given by the command that would start it now.
_OPTIONS = [
    option for option in options_of(schemas()["schedule"]) if option.key not in {"kind", "spec"}
]


def _create(command: Sequence[str], as_json: bool, **params: Any) -> int:
    work, work_options = read_command(command)
    body = {**work, **read_spec(_OPTIONS, params)}
    # --json behind the command would be for its output; here it is for what is printed now.
    with name_options([*work_options, *_OPTIONS]):
        return create_schedule(body, as_json or wants_json(list(command)))


schedule.add_command(
    CliCommand(
        "create",
        params=[
            CliArgument(
                ["command"],
                nargs=-1,
                required=False,
                metavar="COMMAND",
                type=click.UNPROCESSED,
                help='Command that starts the work, such as run "…" or loop "…" --until ….',
            ),
            *params_of(_OPTIONS),
            parser.json_option(),
        ],
        callback=_create,
        help="Create a schedule, and print its id.",
        examples=[
            'kapelle schedule create --at 18:30 run "review the open TODOs" --read-only',
            'kapelle schedule create --cron "0 3 * * MON" loop "fix the tests" --until "make test"',
        ],
        # What follows the first word that is no option belongs to the command.
        context_settings={"allow_interspersed_args": False},
    )
)


def create_schedule(body: dict[str, object], as_json: bool) -> int:
    """Create a schedule and print its id."""
    answer = DaemonConnection().create("/schedules", body)
    remarks = []
    if sys.stdout.isatty():
        remarks.append(f"{upcoming(answer)}; `kapelle schedule status {answer['id']}` shows it.")
    return Result(answer, [plain_line(answer["id"])], remarks).print(as_json=as_json)


def read_command(command: Sequence[str]) -> tuple[dict[str, Any], list[SpecOption]]:
    """Return the work that a command would start, read by that command, and its options."""
    if not command:
        raise InvalidInput(
            "The command that starts the work is missing.",
            hint='End the line with a command, such as `run "tidy up" --agent claude`.',
        )
    name, *arguments = command
    if name not in STARTING:
        raise _no_starting_command(name)
    try:
        starter, words = find_starter(name, arguments)
        context = starter.build_command().make_context(f"kapelle {starter.command_name}", words)
        params = context.params
        is_answer = params.get("resume") or params.get("answer")
        refuse(
            (
                params.get("every") is not None,
                "A schedule cannot start a schedule.",
                "Leave --every or the schedule out.",
            ),
            (
                is_answer,
                "A schedule starts new runs, and --resume goes on with one.",
                "Leave --resume and --answer out.",
            ),
        )
        path, body = starter.request(params)
    except click.UsageError as error:
        refusal = translate(error)
        # In such a line options may stand in the wrong place.
        refusal.hint = f"The options of the schedule come before `{name}`. {refusal.hint}"
        raise refusal from None
    work = {"kind": "task", "spec": body}
    if path != "/tasks":
        work = {"kind": body["pattern"], "spec": body["spec"]}
    return work, starter.options


def _no_starting_command(name: str) -> InvalidInput:
    """Return the error about a word that no schedule can start."""
    from kapelle.cli.commands import command_help

    hint = f"Write one of {', '.join(STARTING)}"
    if name not in command_help():
        hint += f": for example `run {shlex.quote(name)}`"
    return InvalidInput(f"{name!r} is not a command that starts work.", hint=f"{hint}.")


_LAST_FIRINGS = 5
# The statuses of the domain, whose module takes longer to import than the rest of a command.
STATUSES = ("active", "paused", "completed", "failed", "cancelled", "expired")

schedule_argument = id_argument("schedule_id", "schedules", "a schedule")


@schedule.command("list")
@status_option("schedules", STATUSES)
@limit_option(20)
@reports
def list_schedules(status: Sequence[str], limit: int) -> Result:
    """List schedules, newest first."""
    query = {"status": statuses(status, STATUSES)}
    nothing = "No schedules. `kapelle schedule create --help` shows how to create one."
    if status:
        nothing = "No schedules match."
    return listing("/schedules", query, limit, schedule_rows, nothing)


@schedule.command("status")
@schedule_argument
@reports
def status(schedule_id: str) -> Result:
    """Show a schedule with its last slots."""
    client = DaemonConnection()
    fields = client.get(schedule_path(schedule_id))
    page = client.get(schedule_path(fields["id"], "firings"), {"limit": _LAST_FIRINGS})
    firings = page["firings"]
    return Result({**fields, "firings": firings}, describe(fields, firings))


@schedule.command("history")
@schedule_argument
@limit_option(50)
@reports
def history(schedule_id: str, limit: int) -> Result:
    """Show the slots of a schedule and what each started, newest first."""
    client = DaemonConnection()
    fields = client.get(schedule_path(schedule_id))
    path = schedule_path(fields["id"], "firings")

    def lines(firings: Items) -> list[str]:
        return firing_rows(firings, fields)

    return listing(path, {}, limit, lines, "No slot has come yet.", client)


@schedule.command("pause")
@schedule_argument
@reports
def pause(schedule_id: str) -> Result:
    """Pause a schedule: it starts nothing until it is resumed; running work goes on."""
    return _change(schedule_id, "pause", None)


@schedule.command("resume")
@schedule_argument
@reports
def resume(schedule_id: str) -> Result:
    """Resume a schedule with its next slot; missed slots are not made up for."""
    return _change(schedule_id, "resume", None)


@schedule.command("cancel")
@schedule_argument
@flag("--with-work", help="Cancel the work that it started and that is still running, too.")
@reports
def cancel(schedule_id: str, with_work: bool) -> Result:
    """Cancel a schedule; the work that it started goes on."""
    fate = "goes on; `kapelle cancel {0}` ends it"
    if with_work:
        fate = "is being cancelled"
    return _change(schedule_id, "cancel", {"with_work": with_work}, fate)


@schedule.command("run")
@schedule_argument
@reports
def run(schedule_id: str) -> Result:
    """Start the work of a schedule now, and print its id."""
    firing = DaemonConnection().post(schedule_path(schedule_id, "run"))
    if firing["subject"]:
        return Result(firing, [plain_line(firing["subject"])])
    return Result(firing, remarks=[f"error: It was not started: {firing['reason']}"], exit_code=1)


def _change(schedule_id: str, action: str, body: object, fate: str = "goes on") -> Result:
    """Change a schedule, and tell what happens to the work that it has started."""
    answer = DaemonConnection().post(schedule_path(schedule_id, action), body)
    line = plain_line(f"{answer['id']}  {answer['status']}")
    remarks = [f"{subject} {fate.format(subject)}." for subject in answer["in_flight"]]
    return Result(answer, [line], remarks)


_STYLES = {**STATUS_STYLE, "active": "cyan", "expired": "dim", "started": "green", "missed": "red"}
_MISSED = {"skip": "skipped", "catchup": "made up for by one start", "fail": "the schedule fails"}
_ENDED = frozenset({"completed", "failed", "cancelled", "expired"})


def _schedule_cells(schedule: "ScheduleJson") -> list[str]:
    return [
        schedule["id"],
        schedule["status"],
        one_line(trigger(schedule), 50),
        format_time_left(schedule["next_at"]),
        _runs(schedule),
        _title(schedule),
    ]


schedule_rows = columns("ID,STATUS,WHEN,NEXT,RUNS,TITLE", _schedule_cells, _STYLES, fold=(2, 3, 4))


def describe(schedule: "ScheduleJson", firings: "Sequence[FiringJson]") -> Iterator[str]:
    """Return the view of a schedule."""
    status = paint(schedule["status"], _STYLES.get(schedule["status"]))
    yield from heading_lines(schedule["title"], schedule["id"], status, schedule["reason"])
    prompt = schedule["spec"].get("prompt") or schedule["spec"].get("goal") or ""
    facts = {
        "starts": one_line(f"{schedule['kind']} {prompt}", 100),
        "directory": clean(schedule["directory"]),
        "when": one_line(trigger(schedule)),
        "next": "",
        "missed": "",
        "overlap": "allowed" if schedule["overlap"] else "no",
        "expires": _clock(schedule["expires_at"], schedule),
        "runs": _runs(schedule),
        "going": " ".join(schedule["in_flight"]),
    }
    if schedule["next_at"]:
        facts["next"] = _next_start(schedule)
    if schedule["cron"] or schedule["at"]:
        facts["missed"] = _MISSED[schedule["missed"]]
    yield from field_lines(facts)
    if firings:
        yield field_line("firings", "")
        yield from firing_rows(firings, schedule, indent=4)
    yield from command_lines(_commands(schedule))


def firing_rows(
    firings: "Sequence[FiringJson]", schedule: "ScheduleJson", indent: int = 0
) -> list[str]:
    """Return a table of slots and what they started, by the clock of their schedule."""

    def cells(firing: "FiringJson") -> list[str]:
        return [
            _clock(firing["slot"], schedule),
            firing["outcome"],
            firing["subject"] or "",
            firing["subject_status"] or "",
            firing["reason"] or "",
        ]

    header = "SLOT,OUTCOME,STARTED,STATUS,REASON"
    return columns(header, cells, _STYLES, indent=indent, fold=(2, 3, 4))(firings)


def trigger(schedule: "ScheduleJson") -> str:
    """Return when a schedule starts its work, in a few words."""
    after = f" after {schedule['after']}" if schedule["after"] else ""
    if schedule["cron"]:
        zone_name = ""
        if schedule["timezone"] != "UTC":
            zone_name = f" {schedule['timezone']}"
        return f"{schedule['cron']}{zone_name}{after}"
    if schedule["at"]:
        return f"at {_clock(schedule['at'], schedule)}{after}"
    if schedule["every_s"]:
        return f"every {format_duration(schedule['every_s'])}"
    return after.strip()


def _next_start(schedule: "ScheduleJson") -> str:
    """Return when a schedule starts its work next, and how soon that is."""
    at = schedule["next_at"]
    return f"{_clock(at, schedule)}, {format_time_left(at)}"


def upcoming(schedule: "ScheduleJson") -> str:
    """Return the beginning of a sentence about the next start."""
    if schedule["next_at"] is None:
        return f"It {schedule['reason'] or 'waits'}"
    return f"Next at {_next_start(schedule)}"


def _title(schedule: "ScheduleJson") -> str:
    if schedule["reason"] and schedule["status"] not in {"completed", "cancelled"}:
        return f"{schedule['title']} ({schedule['reason']})"
    return str(schedule["title"])


def _runs(schedule: "ScheduleJson") -> str:
    """Return how often the work was started, with the limit."""
    if schedule["max_runs"]:
        return f"{schedule['started']} of {schedule['max_runs']}"
    return str(schedule["started"])


def _clock(text: str | None, schedule: "ScheduleJson") -> str:
    """Return a time by the clock of the schedule; empty without a time."""
    if text is None:
        return ""
    try:
        place = zone(schedule["timezone"])
    except InvalidInput:
        place = UTC  # the daemon may know zones that this machine does not
    return f"{datetime.fromisoformat(text).astimezone(place):%Y-%m-%d %H:%M:%S %Z}"


def _commands(schedule: "ScheduleJson") -> list[tuple[str, str]]:
    """Return the commands that a person may type next, with what each does."""
    name = schedule["id"]
    commands = [(f"kapelle schedule history {name}", "show its slots")]
    if schedule["status"] == "active":
        commands.append((f"kapelle schedule pause {name}", "start nothing until it is resumed"))
    elif schedule["status"] == "paused":
        commands.append((f"kapelle schedule resume {name}", "go on with the next slot"))
    if schedule["status"] not in _ENDED:
        commands.append((f"kapelle schedule run {name}", "start the work now"))
        commands.append((f"kapelle schedule cancel {name}", "cancel it"))
    return commands
