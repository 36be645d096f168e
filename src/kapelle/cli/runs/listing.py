"""`kapelle runs list`."""

import sys
from typing import Annotated, Any

import typer

from kapelle.cli.client import Client
from kapelle.cli.options import Json
from kapelle.cli.output import document, say
from kapelle.cli.runs.outcome import Run
from kapelle.cli.runs.progress import state_words
from kapelle.cli.text import one_line
from kapelle.cli.values import listed, not_empty
from kapelle.domain.errors import InvalidInput
from kapelle.domain.states import RunStatus

PAGE = 200


def _complete_status(incomplete: str) -> list[str]:
    return [status for status in RunStatus if status.startswith(incomplete)]


def list_runs(
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help="Only runs in this state; repeatable.",
            autocompletion=_complete_status,
        ),
    ] = None,
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
        "status": _known(status or []) or None,
        "pattern": pattern if pattern is None else not_empty(pattern, "--pattern"),
        "project": project if project is None else not_empty(project, "--project"),
        "nested": "true" if nested else None,
        "archived": "true" if everything else None,
    }
    show_list(Client(), query, limit, as_json)


def show_list(client: Client, query: dict[str, Any], limit: int, as_json: bool) -> None:
    runs, more = _fetch(client, query, limit)
    if as_json:
        document(runs)
        return
    if not runs:
        filtered = any(query.values())
        say("No runs match." if filtered else "No runs. `kapelle start` lists the patterns.")
        return
    sys.stdout.writelines(f"{line}\n" for line in lines(runs))
    if more:
        say(f"There are more; `--limit {limit * 5}` shows further ones.")


def _known(typed: list[str]) -> list[str]:
    wanted = [status.lower() for status in listed(typed, "--status")]
    for status in wanted:
        if status not in list(RunStatus):
            raise InvalidInput(
                f"{status!r} is not a state of a run.", hint=f"Use one of {', '.join(RunStatus)}."
            )
    return wanted


def _fetch(client: Client, query: dict[str, Any], limit: int) -> tuple[list[Run], bool]:
    runs: list[Run] = []
    cursor = None
    while len(runs) < limit:
        page_size = min(PAGE, limit - len(runs))
        page = client.get("/runs", {**query, "limit": page_size, "cursor": cursor})
        runs += page["runs"]
        cursor = page["next_cursor"]
        if not cursor:
            break
    return runs, bool(cursor)


def lines(runs: list[Run]) -> list[str]:
    """A table of runs."""
    from kapelle.cli.style import STATUS_STYLE, table
    from kapelle.cli.times import between

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
    if run["status"] == RunStatus.RUNNING and run["progress"]:
        about = state_words(run["progress"], run["spec"].get("max_iterations"))
    elif run["status"] in {RunStatus.WAITING, RunStatus.PAUSED, RunStatus.QUEUED}:
        about = one_line(run["reason"] or "")
    else:
        about = ""
    return f"{title} ({about})" if about else title
