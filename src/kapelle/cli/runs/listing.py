"""`kapelle runs list`."""

from typing import Annotated, Any

import typer

from kapelle.cli.options import Json
from kapelle.cli.paging import show_list, status_option, statuses
from kapelle.cli.runs.outcome import Run
from kapelle.cli.runs.progress import state_words
from kapelle.cli.text import one_line
from kapelle.cli.values import optional_text
from kapelle.client.http import Connection as Client
from kapelle.domain.states import RunStatus

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
    show_list(Client(), "/runs", query, limit, as_json=as_json, lines=lines, nothing=nothing)


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
    rests = run["status"] in {RunStatus.WAITING, RunStatus.PAUSED, RunStatus.QUEUED}
    if rests or run["waiting_for"] == "input":
        about = one_line(run["reason"] or "")
    elif run["status"] == RunStatus.RUNNING and run["progress"]:
        about = state_words(run["progress"], run["spec"].get("max_iterations"))
    else:
        about = ""
    return f"{title} ({about})" if about else title
