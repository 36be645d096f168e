"""What is typed about schedules, and how they are shown."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import ValidationError
from tests.unit.cli.program import find_options
from tests.unit.cli.test_cli_commands import help_of
from tests.unit.cli.test_cli_imports import FORBIDDEN, HEAVY, loaded_after

from kapelle.cli import figures, layout, values
from kapelle.cli.commands import command_names, load
from kapelle.cli.schedules import STARTING, STATUSES, describe, read_command
from kapelle.cli.schedules import firing_rows as history
from kapelle.cli.schedules import schedule_rows as rows
from kapelle.cli.values import future_time as time_to_come
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import FieldProblem, InvalidInput, invalid_spec
from kapelle.domain.schedule import ScheduleSpec, ScheduleStatus
from kapelle.domain.times import format_duration

NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (figures, values):
        monkeypatch.setattr(module, "now", lambda: NOW)


def create(command: list[str], **options: Any) -> None:
    """Type `schedule create` with these options before a command."""
    typed: list[str] = []
    for name, value in options.items():
        typed += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    load("schedule")(["create", *typed, *command], standalone_mode=False)


@pytest.mark.parametrize(
    ("typed", "zone", "meant"),
    [
        ("90s", None, "2026-03-28T12:01:30+00:00"),
        ("1h30m", "Asia/Tokyo", "2026-03-28T13:30:00+00:00"),
        ("18:30", None, "2026-03-28T18:30:00+00:00"),
        ("9:00", None, "2026-03-29T09:00:00+00:00"),
        # Clocks go forward that night, so tomorrow's nine o'clock is an hour earlier.
        ("9:00", "Europe/Berlin", "2026-03-29T07:00:00+00:00"),
        ("2026-11-01T03:00", None, "2026-11-01T03:00:00+00:00"),
        ("2026-11-01T03:00", "America/New_York", "2026-11-01T08:00:00+00:00"),
        ("2026-11-01T03:00:00+01:00", "Asia/Tokyo", "2026-11-01T02:00:00+00:00"),
        ("2026-11-01", None, "2026-11-01T00:00:00+00:00"),
    ],
)
def test_times_to_come(typed: str, zone: str | None, meant: str) -> None:
    assert time_to_come(typed, "--at", zone) == meant


@pytest.mark.parametrize("typed", ["", "soon", "25:00", "2026-13-01", "tomorrow"])
def test_other_words_are_no_times(typed: str) -> None:
    with pytest.raises(InvalidInput, match="not a time in the future") as caught:
        time_to_come(typed, "--at", None)
    assert caught.value.hint == "Write --at 2h, --at 18:30 or --at 2030-01-31T18:30."


def test_a_zone_is_looked_at_where_it_is_needed() -> None:
    with pytest.raises(InvalidInput, match="not a time zone"):
        time_to_come("18:30", "--at", "Nowhere")


class Sent(Exception):
    """Ends a command that was about to ask the daemon."""


@contextmanager
def collecting() -> Iterator[list[tuple[str, Any]]]:
    """What the command inside would have the daemon begin, by its path."""
    orders: list[tuple[str, Any]] = []

    def create(_: DaemonConnection, path: str, body: Any) -> None:
        orders.append((path, body))
        raise Sent

    with pytest.MonkeyPatch.context() as patch, suppress(Sent):
        patch.setattr(DaemonConnection, "create", create)
        yield orders


@pytest.mark.parametrize(
    "typed",
    [
        ["loop", "x", "--until", "true", "-f"],
        ["pipeline", "x", "y", "--json"],
        ["best-of", "x"],
        ["team", "x", "--progress"],
    ],
)
def test_every_command_of_a_pattern_can_be_kept_for_later(
    typed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    work, _ = read_command(typed)
    assert work["kind"] == typed[0]
    assert work["spec"]["directory"].startswith("/")
    assert capsys.readouterr().out == ""


def test_the_command_that_would_start_it_makes_the_specification(tmp_path: Path) -> None:
    typed = ["run", "tidy up", "-a", "claude", "-C", str(tmp_path), "--check", "make test"]
    spec = {"prompt": "tidy up", "agent": "claude", "directory": str(tmp_path)}
    assert read_command(typed)[0] == {"kind": "task", "spec": {**spec, "checks": ["make test"]}}


def test_a_pattern_is_kept_by_its_name(tmp_path: Path) -> None:
    found, _ = read_command(["loop", "make it pass", "--until", "make test", "-C", str(tmp_path)])
    assert found["kind"] == "loop"
    assert found["spec"]["prompt"] == "make it pass"


@pytest.mark.parametrize(
    ("typed", "said", "hint"),
    [
        ([], "is missing", "End the line with a command"),
        (["stop"], "not a command that starts work", "Write one of run"),
        (["tidy up"], "not a command that starts work", "for example `run 'tidy up'`"),
        (["run", "x", "--cron", "* * * * *"], "No such option: --cron", "come before `run`"),
        (
            ["run", "x", "--every", "5s"],
            "cannot start a schedule",
            "Leave --every or the schedule out",
        ),
        (["run"], "prompt", ""),
        (["start"], "pattern's name is missing", "lists the patterns"),
        (["team", "--resume", "run_1:1", "--answer", "x"], "starts new runs", "--resume"),
    ],
)
def test_what_cannot_be_scheduled(typed: list[str], said: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_command(typed)
    assert said in caught.value.message
    assert hint in (caught.value.hint or "")


def test_asking_a_command_for_help_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit) as caught:
        read_command(["run", "--help"])
    assert caught.value.exit_code == 0
    assert capsys.readouterr().out.startswith("Give an agent a task")


def test_every_command_that_starts_work_is_known() -> None:
    assert set(STARTING) <= set(command_names())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "a trigger is missing: give --cron, --at, --every or --after"),
        ({"cron": "* * * * *", "at": "2h"}, "--cron and --at cannot be combined"),
        ({"at": "2h", "every": "2h"}, "--at and --every cannot be combined"),
        ({"every": "2h", "after": "schedule_x"}, "cannot be combined with --every"),
        ({"every": "2h", "overlap": True}, "--overlap and --missed do not apply"),
        ({"every": "2h", "missed": "fail"}, "--overlap and --missed do not apply"),
        ({"cron": "* * * * *", "missed": "maybe"}, "--missed cannot be 'maybe'."),
        ({"at": "2026-03-28T11:59"}, "--at '2026-03-28T11:59' is not a time in the future."),
    ],
)
def test_options_that_do_not_go_together(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(_: DaemonConnection, path: str, body: Any) -> None:
        try:
            ScheduleSpec.model_validate(body)
        except ValidationError as error:
            raise invalid_spec(error) from None

    monkeypatch.setattr(DaemonConnection, "create", judge)
    with pytest.raises(InvalidInput) as caught:
        create(["run", "x"], **options)
    assert said in caught.value.message


@pytest.mark.parametrize(
    "options",
    [
        {"every": "1h", "timezone": "Europe/Berlin", "expires": "18:30"},
        {"after": "schedule_x", "overlap": True},
        {"cron": "* * * * *", "overlap": True, "missed": "skip", "timezone": "UTC"},
    ],
)
def test_they_are_taken_where_they_mean_something(options: dict[str, Any]) -> None:
    with collecting() as orders:
        create(["run", "x"], **options)
    assert len(orders) == 1


@pytest.mark.parametrize(
    ("typed", "as_json"),
    [
        (["--json", "run", "x"], True),
        (["run", "x", "--json"], True),
        (["loop", "x", "--until", "true", "--json"], True),
        (["run", "x"], False),
        (["run", "--", "--json"], False),
    ],
)
def test_json_may_stand_before_or_behind_the_command(
    typed: list[str], as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def keep(_: dict[str, Any], as_json: bool) -> None:
        asked.append(as_json)

    monkeypatch.setattr("kapelle.cli.schedules.create_schedule", keep)
    load("schedule")(["create", "--at", "2h", *typed], standalone_mode=False)
    assert asked == [as_json]


@pytest.mark.parametrize("typed", [["loop", "x"], ["run", "x"]])
def test_an_error_names_the_options_of_the_command_behind_too(
    typed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "mend `retry.max_attempts`, `eval` with `direction`, or `every_s`"
    names = ("retry.max_attempts", "eval", "direction", "every_s")

    def refuse(*_: Any) -> None:
        raise InvalidInput(text, fields=[FieldProblem((), text, "rule", names)])

    monkeypatch.setattr("kapelle.cli.schedules.create_schedule", refuse)
    with pytest.raises(InvalidInput) as caught:
        create(typed, at="2h")
    named = {
        "loop": "mend `retry.max_attempts`, --eval with --minimize or --maximize, or --every",
        "run": "mend --max-attempts, `eval` with `direction`, or --every",
    }
    assert caught.value.message == named[typed[0]]


def test_all_options_reach_the_daemon(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "cron": "0 3 * * *",
        "after": "schedule_x",
        "timezone": "Europe/Berlin",
        "missed": "catchup",
        "overlap": True,
        "max_runs": 3,
        "expires": "2026-11-01",
        "title": "nightly",
    }
    with collecting() as outer:
        create(["run", "x", "-C", str(tmp_path)], **options)
    ((path, body),) = outer
    assert path == "/schedules"
    assert body == {
        "kind": "task",
        "spec": {"prompt": "x", "directory": str(tmp_path)},
        "cron": "0 3 * * *",
        "after": "schedule_x",
        "timezone": "Europe/Berlin",
        "missed": "catchup",
        "overlap": True,
        "max_runs": 3,
        "expires_at": "2026-10-31T23:00:00+00:00",
        "title": "nightly",
    }


@pytest.mark.parametrize(
    "name",
    [f"schedule {name}" for name in ("create", "list", "status", "history", "pause", "resume",
                                     "cancel", "run")],
)  # fmt: skip
def test_every_command_explains_itself_and_has_json(name: str) -> None:
    text = help_of(name)
    assert f"\nUsage: {name} " in text
    assert "--json" in text


DOCS = Path(__file__).parents[3] / "docs" / "schedules.md"
EXAMPLES = [
    line
    for line in DOCS.read_text(encoding="utf-8").splitlines()
    if line.startswith(("kapelle schedule create ", "kapelle run "))
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_examples_of_the_page_about_schedules_can_be_typed(line: str) -> None:
    _, name, *arguments = shlex.split(line.partition("   #")[0])
    with collecting() as orders:
        load(name)(arguments, standalone_mode=False)
    assert [path for path, _ in orders] == ["/schedules"]


def test_the_page_about_schedules_names_every_option() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for option in find_options("schedule create"):
        if option.name != "as_json":
            assert re.search(rf"`{option.opts[0]}[ `]", text), option.opts


def test_the_states_are_those_of_schedules() -> None:
    assert tuple(ScheduleStatus) == STATUSES


def schedule(**changes: Any) -> Any:
    return {
        "id": "schedule_01",
        "title": "nightly",
        "kind": "task",
        "spec": {"prompt": "tidy \x1b[31mup"},
        "directory": "/src",
        "project": None,
        "cron": "0 3 * * *",
        "at": None,
        "every_s": None,
        "after": None,
        "timezone": "Europe/Berlin",
        "missed": "skip",
        "overlap": False,
        "max_runs": 5,
        "expires_at": None,
        "status": "active",
        "reason": None,
        "next_at": (NOW + timedelta(hours=2, seconds=30)).isoformat(),
        "started": 2,
        "in_flight": ["task_01"],
        "created_at": "2026-03-28T12:00:00Z",
        "ended_at": None,
        **changes,
    }


FIRING: Any = {
    "schedule_id": "schedule_01",
    "slot": "2026-03-28T02:00:00Z",
    "at": "2026-03-28T02:00:00.1Z",
    "outcome": "skipped",
    "reason": "task_01 is still going",
    "subject": None,
    "subject_status": None,
}


def test_a_schedule_is_shown_in_its_own_zone_with_what_may_be_typed_next() -> None:
    lines = "\n".join(describe(schedule(), [FIRING]))
    assert "starts     task tidy up" in lines
    assert "when       0 3 * * * Europe/Berlin" in lines
    assert "in 2h00m" in lines
    assert "runs       2 of 5" in lines
    assert "going      task_01" in lines
    assert "2026-03-28 03:00:00 CET  skipped" in lines
    assert "kapelle schedule pause schedule_01" in lines
    assert "kapelle schedule resume" not in lines


def test_an_ended_schedule_offers_nothing_that_is_refused() -> None:
    lines = "\n".join(describe(schedule(status="failed", reason="broke", next_at=None), []))
    assert "status     failed: broke" in lines
    assert "kapelle schedule cancel" not in lines


def test_the_list_says_when_and_why_not() -> None:
    several = [
        schedule(),
        schedule(cron=None, every_s=5400, timezone="UTC", status="paused", reason="by a person"),
        schedule(cron=None, after="schedule_00", next_at=None, timezone="UTC"),
        schedule(cron=None, at="2026-11-01T02:00:00Z", after="schedule_00"),
    ]
    _, first, second, third, fourth = rows(several)
    assert "0 3 * * * Europe/Berlin" in first
    assert "every 1h30m" in second
    assert second.endswith("nightly (by a person)")
    assert "  after schedule_00  " in third
    assert "at 2026-11-01 03:00:00 CET after" in fourth


LONG = {
    "id": "schedule_01m7g3s8y7yahm325eqgwd5kyk",
    "cron": "*/20 8-18 * * MON-FRI",
    "timezone": "America/Argentina/Buenos_Aires",
    "title": "update the dependencies of the whole project",
    "max_runs": 1000,
}


def test_in_80_columns_everything_is_seen_and_nothing_wraps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "terminal_width", lambda: 80)
    head, times, first, when, *_ = rows([schedule(**LONG), schedule(**LONG)])
    assert head.split() == ["ID", "STATUS", "TITLE"]
    assert times.split() == ["WHEN", "NEXT", "RUNS"]
    assert first.startswith(f"{LONG['id']}  active  update the dependencies")
    assert when.startswith("    */20 8-18 * * MON-FRI America/")
    assert when.endswith("in 2h00m  2 of 1000")
    going = {"subject": "task_01m7g3scaph48zrsp3tp87qzhw", "subject_status": "completed"}
    several = [FIRING, {**FIRING, **going, "outcome": "started", "reason": None}]
    shown = [*rows([schedule(**LONG)]), *history(several, schedule(**LONG), indent=4)]
    assert max(len(line) for line in shown) <= 80
    assert "task_01m7g3scaph48zrsp3tp87qzhw  completed" in shown[-1]


def test_in_a_wide_terminal_each_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "terminal_width", lambda: 140)
    assert len(rows([schedule(**LONG), schedule(**LONG)])) == 3


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(2, "2s"), (90, "1m30s"), (600, "10m"), (3600, "1h"), (90061.5, "1d1h1m1.5s"), (1.5, "1.5s")],
)
def test_intervals_are_shown_as_they_would_be_typed(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    "arguments", [["schedule"], ["schedule", "create", "--at", "2h", "run", "x"]]
)
def test_the_daemons_libraries_stay_out(arguments: list[str]) -> None:
    loaded = loaded_after(*arguments)
    assert "click" in loaded
    assert not loaded & {*FORBIDDEN, *HEAVY, "cronsim"}
