"""`kapelle runs`, and how a command that starts a run shows it."""

import sys
from typing import Annotated, Any

import typer

from kapelle.cli.command import LightCommand, LightGroup
from kapelle.cli.events import state_words
from kapelle.cli.follow import conclude, follow_run, run_display, show_last, show_lines
from kapelle.cli.format import one_line
from kapelle.cli.ids import RunId, RunIds, complete_run, run_path, task_path
from kapelle.cli.options import Json, JsonLines
from kapelle.cli.outcome import FINAL, INPUT_NEEDED, Run, Task, exit_code, settled
from kapelle.cli.output import data, document, json_line, say
from kapelle.cli.pages import show_list, status_option, statuses
from kapelle.cli.prompt import read_prompt
from kapelle.cli.request import begin
from kapelle.cli.tasks import change_each, show_each, until_ended
from kapelle.cli.values import optional_text
from kapelle.client.http import Connection
from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.states import RunStatus
from kapelle.domain.text import counted


def start_run(pattern: str, spec: dict[str, Any], *, follow: bool, as_json: bool) -> None:
    """Start a run and show it as the options of its command ask for."""
    client = Connection()
    run = begin(client, "/runs", {"pattern": pattern, "spec": spec})
    if follow:
        _follow(client, run, as_json)
    elif as_json:
        document(run)
    else:
        data(run["id"])
        if sys.stdout.isatty():
            say(f"Follow it with `kapelle runs tail {run['id']}`.")


def _follow(client: Connection, run: dict[str, Any], as_json: bool) -> None:
    if as_json:
        json_line(run)
    else:
        data(run["id"])
        sys.stdout.flush()
    ended = follow_run(client, run, run_display(run, as_json=as_json)).run
    if as_json:
        json_line({"event": "end", "status": ended["status"], "run": ended})
    else:
        conclude(ended)
    raise typer.Exit(exit_code(ended))


def tail(
    run_id: RunId,
    last: Annotated[
        int | None,
        typer.Option("--tail", min=0, metavar="NUMBER", help="Of the past only so many lines."),
    ] = None,
    as_json: JsonLines = False,
) -> None:
    """Show what a run does until it has ended, waits or is paused.

    Exits with 0 when it is completed, 1 when it failed or was cancelled, 3 when it needs input
    or is paused.
    """
    follow_to_end(Connection(), run_id, last, as_json)


def follow_to_end(client: Connection, run_id: str, last: int | None, as_json: bool) -> None:
    """Show a run until it rests, and exit with what became of it."""
    run = client.get(run_path(run_id))
    display = run_display(run, as_json=as_json)
    ended = follow_run(client, run, display, tail=last, raw=as_json).run
    if as_json:
        json_line({"event": "end", "status": ended["status"]})
    else:
        conclude(ended)
    raise typer.Exit(exit_code(ended))


def show_past(client: Connection, run_id: str, last: int | None, as_json: bool) -> None:
    """Show what a run did so far."""
    whole_id = client.get(run_path(run_id))["id"]
    show = json_line if as_json else show_lines(sys.stdout)
    if not show_last(client, whole_id, show, last, raw=as_json) and not as_json:
        say("It has not done anything yet.")


_STATUSES = tuple(RunStatus)


def list_runs(
    status: Annotated[list[str] | None, status_option("runs", _STATUSES)] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only runs of this pattern.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only runs of this project.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    nested: Annotated[bool, typer.Option("--nested", help="Runs inside runs too.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Archived runs too.")] = False,
    as_json: Json = False,
) -> None:
    """List runs, the newest first."""
    query = {
        "status": statuses(status, "run", _STATUSES),
        "pattern": optional_text(pattern, "--pattern"),
        "project": optional_text(project, "--project"),
        "nested": "true" if nested else None,
        "archived": "true" if everything else None,
    }
    show_runs(query, limit, as_json)


def show_runs(query: dict[str, Any], limit: int, as_json: bool) -> None:
    """Show the newest runs that fit a query."""
    filtered = any(query.values())
    nothing = "No runs match." if filtered else "No runs. `kapelle start` lists the patterns."
    show_list(Connection(), "/runs", query, limit, as_json=as_json, lines=run_rows, nothing=nothing)


def run_rows(runs: list[Run]) -> list[str]:
    """A table of runs."""
    from kapelle.cli.format import STATUS_STYLE, between, table

    rows = [
        [
            run["id"],
            run["status"],
            one_line(run["pattern"], 16),
            between(run["created_at"], None),
            _title(run),
        ]
        for run in runs
    ]
    styles = [STATUS_STYLE.get(run["status"]) for run in runs]
    return table(["ID", "STATUS", "PATTERN", "AGE", "TITLE"], rows, styles)


def _title(run: Run) -> str:
    """The title, with how far the run is or what it waits for."""
    title = one_line(run["title"])
    if run.get("archived_at"):
        return f"(archived) {title}"
    rests = run["status"] in {RunStatus.WAITING, RunStatus.PAUSED, RunStatus.QUEUED}
    if rests or run["waiting_for"] == "input":
        about = one_line(run["reason"] or "")
    elif run["status"] == RunStatus.RUNNING and run["progress"]:
        about = state_words(run["progress"], run["spec"].get("max_iterations"))
    else:
        about = ""
    return f"{title} ({about})" if about else title


def status(run_id: RunId, as_json: Json = False) -> None:
    """Show one run: where it stands, what it did and what it used."""
    show_status(Connection(), run_id, as_json)


def show_status(client: Connection, run_id: str, as_json: bool) -> None:
    run = client.get(run_path(run_id))
    if as_json:
        document(run)
        return
    from kapelle.cli.follow import history
    from kapelle.cli.run_view import describe

    steps = client.get(run_path(run["id"], "steps"))
    told = []
    if run["result"] is None and "iteration" in run["progress"]:
        events = history(client, run["id"])
        told = [event["data"] for event in events if event["kind"] == "run.progress"]
    tasks = {task["id"]: task for task in _open_tasks(client, steps)}
    sys.stdout.writelines(f"{line}\n" for line in describe(run, steps, told, tasks))


def _open_tasks(client: Connection, steps: list[dict[str, Any]]) -> list[Task]:
    """The tasks that a run waits for; what they are at, only they themselves know."""
    begun = [step["subject"] for step in steps if step["kind"] == "task" and not step["ended_at"]]
    return [client.get(task_path(task_id)) for task_id in begun if task_id]


def steps(run_id: RunId, as_json: Json = False) -> None:
    """List everything that a run did and does, in order."""
    found = Connection().get(run_path(run_id, "steps"))
    if as_json:
        document(found)
        return
    if not found:
        say("It has not done anything yet.")
        return
    from kapelle.cli.format import STATUS_STYLE, between, table

    rows = [
        [
            step["position"],
            _state(step),
            step["kind"],
            between(step["started_at"], step["ended_at"]),
            one_line(" ".join(filter(None, [step["label"], step["subject"], step["error"]]))),
        ]
        for step in found
    ]
    styles = [STATUS_STYLE.get(row[1]) for row in rows]
    lines = table(["STEP", "STATUS", "KIND", "TOOK", "WHAT"], rows, styles)
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _state(step: dict[str, Any]) -> str:
    if step["ended_at"] is None:
        return "waiting" if step["kind"] == "ask" else "running"
    if step["error"]:
        return "failed"
    result = step["result"]
    known = result.get("status") if isinstance(result, dict) else None
    return str(known) if known in FINAL else "done"


def result(run_id: RunId, as_json: Json = False) -> None:
    """Print what a run returned, as JSON.

    Exits with 0 when it is completed, 1 when it failed or was cancelled, 3 when it needs input.
    """
    run = Connection().get(run_path(run_id))
    if run["status"] not in FINAL:
        if settled(run):
            say(f"{run['id']} is {run['status']}; `kapelle runs status {run['id']}` tells why.")
            raise typer.Exit(INPUT_NEEDED)
        raise Conflict(
            f"{run['id']} is {run['status']} and has no result yet.",
            hint=f"`kapelle wait {run['id']}` waits for it.",
        )
    document(run["result"])
    if run["status"] != "completed":
        say(
            f"{run['id']} {run['status']}"
            + (f": {one_line(run['reason'])}" if run["reason"] else "")
        )
    raise typer.Exit(exit_code(run))


Reason = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Why, for the record.", show_default=False)
]
Asked = Annotated[
    str,
    typer.Argument(
        metavar="ID|TOKEN",
        help="The run's id, or the token of its question.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
_ANSWER = 'Write `kapelle runs answer ID "…"`, or pipe it in with `-`.'
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until they have ended.")]


def pause(
    run_ids: RunIds,
    now: Annotated[
        bool, typer.Option("--now", help="Stop running tasks too; they begin again later.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Have runs start nothing more; what is at work ends first."""
    client = Connection()
    runs, failure = change_each(client, run_ids, "pause", {"now": now}, run_path)
    show_each(runs, as_json)
    if not as_json and not now and any(run["status"] == "running" for run in runs):
        say("What is at work ends first; `--now` stops it at once.")
    if failure:
        raise failure


def resume(run_ids: RunIds, as_json: Json = False) -> None:
    """Let paused runs go on."""
    runs, failure = change_each(Connection(), run_ids, "resume", path=run_path)
    show_each(runs, as_json)
    if failure:
        raise failure


def cancel(
    run_ids: RunIds,
    keep_tasks: Annotated[
        bool, typer.Option("--keep-tasks", help="Leave the tasks it started to go on.")
    ] = False,
    reason: Reason = None,
    no_wait: NoWait = False,
    as_json: Json = False,
) -> None:
    """End runs with all that they started."""
    client = Connection()
    body = {"reason": reason, "with_tasks": not keep_tasks}
    runs, failure = change_each(client, run_ids, "cancel", body, run_path)
    if not no_wait:
        runs = [until_ended(client, run) for run in runs]
    show_each(runs, as_json)
    if failure:
        raise failure


def answer(
    run_id: Asked,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What it wanted to know; - reads stdin.")
    ],
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Which question, when there are several."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer a question of a run that waits; it then goes on."""
    said = read_prompt(text, None, _ANSWER, "answer")
    whose, _, position = run_id.partition(":")
    body = {"answer": said, "token": token or (run_id.strip() if position else None)}
    run = Connection().post(run_path(whose, "answer"), body)
    if as_json:
        document(run)
        return
    data(run["id"])
    if run["questions"]:
        left = len(run["questions"])
        more = f"It has {counted(left, 'question')} more"
        say(f"{more}; `kapelle runs status {run['id']}` shows what it asks.")
    else:
        say(f"It goes on; `kapelle runs tail {run['id']}` follows it.")


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
    from kapelle.cli.tasks import wait_for

    wait_for(run_ids, timeout, as_json, run_path)


for _name, _command in (
    ("list", list_runs),
    ("status", status),
    ("tail", tail),
    ("steps", steps),
    ("result", result),
    ("wait", wait),
    ("pause", pause),
    ("resume", resume),
    ("cancel", cancel),
    ("answer", answer),
):
    runs.command(_name, cls=LightCommand)(_command)
